"""Approximation algorithms that no kept package offers, one small file each."""
