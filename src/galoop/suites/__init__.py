"""Established benchmarks: one file or folder each, found by name."""

from __future__ import annotations

from galoop.suites.protocol import Suite
from galoop.suites.registry import list_suites, load, with_data

__all__ = ["Suite", "list_suites", "load", "with_data"]
