"""Domains: what an example, a system and a budget are."""
