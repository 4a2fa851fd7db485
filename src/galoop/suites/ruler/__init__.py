"""RULER's tasks that need no download; see :class:`galoop.suites.ruler.suite.Ruler`."""

from __future__ import annotations

from galoop.suites.ruler.suite import Ruler

__all__ = ["Ruler"]
