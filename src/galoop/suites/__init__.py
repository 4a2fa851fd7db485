"""Suites."""
