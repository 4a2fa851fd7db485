"""galoop's own selectors, run in this process.

The named artifacts are galoop's own code, not a candidate's, so nothing has to be confined; and a
step of one costs less than handing it to another process does. They are told and asked the same,
and what they choose is checked and measured the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from galoop.domains.sparse_decoding.worker import handler
from galoop.errors import GaloopError


class InProcess:
    """Gives a runner "processes" that are none; see :class:`galoop.domains.text.runner.Forks`."""

    server_alive = True

    def fork(self, files: Mapping[str, str], budget: Mapping[str, float]) -> Any:
        """What stands for a process."""
        return _Local(files, budget)


class _Local:
    """Answers as a :class:`galoop.isolation.Child` does."""

    def __init__(self, files: Mapping[str, str], budget: Mapping[str, float]) -> None:
        self._handle = handler({"files": dict(files), "budget": dict(budget)})

    def call(
        self, request: Mapping[str, Any], fds: Sequence[int] = (), *, seconds: float | None = None
    ) -> dict[str, Any]:
        try:
            return self._handle(request, list(fds))
        except GaloopError as error:
            return {"error": str(error), "state": str(getattr(error, "state", "failed"))}

    def close(self) -> None:
        self._handle = _ended


def _ended(request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
    return {"error": "ended", "state": "failed"}
