"""The isolated side of a probe program: call its function for some seeds.

Nothing here is trusted by the other side: a probe shares this process and can forge every reply.
It imports no torch, to start fast.
"""

from __future__ import annotations

import importlib
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

from galoop.probing.static import ALLOWED_MODULES

_PROBE_FILE = "probe.py"
_MOST_FRAMES = 3


class ReplyChannel(Protocol):
    """The part of :class:`galoop.isolation.channel.Channel` that is used here."""

    def __iter__(self) -> Any:
        """Yield (request, file descriptors)."""

    def reply(self, obj: Mapping[str, Any]) -> None:
        """Send one JSON reply."""


def import_allowed() -> None:
    """Import what probes may import, in the parent that later forks and not in every child."""
    for name in ALLOWED_MODULES:
        importlib.import_module(name)


def results(
    request: Mapping[str, Any],
    function: str,
    call: Callable[[Callable[..., Any], random.Random], Any],
    fault_of: Callable[[Any], str],
    *,
    fault_kind: str,
) -> dict[str, Any]:
    """What a probe's function returned for each seed of a request.

    Parameters
    ----------
    request : mapping
        With ``source``, ``seeds`` and ``salt``.
    function : str
        Name of the probe's function.
    call : callable
        Calls that function with a generator.
    fault_of : callable
        Why a value cannot travel to the other side, or an empty string.
    fault_kind : str
        The kind of error that this is.

    Returns
    -------
    dict
        ``{"results": [...]}`` in the order of the seeds, or
        ``{"error": {"kind", "message", "seed"}}`` with kind ``load``, the function's name,
        ``memory`` or ``fault_kind``.
    """
    # A probe must not use the global generator. Every fork would inherit the same state of it and
    # so look deterministic; a different salt for each fork brings the difference to light.
    random.seed(f"salt {request['salt']}")
    seed: int | None = None
    try:
        loaded = _load(request["source"], function)
        found = []
        for seed in request["seeds"]:
            value = call(loaded, random.Random(seed))
            fault = fault_of(value)
            if fault:
                return _error(fault_kind, fault, seed)
            found.append(value)
    except MemoryError:
        return _error("memory", "it used more memory than it may", seed)
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like are the probe's too
        return _error("load" if seed is None else function, _describe(error), seed)
    return {"results": found}


def _load(source: str, function: str) -> Callable[..., Any]:
    module = ModuleType("probe")
    # dataclasses look their module up by name.
    sys.modules["probe"] = module
    exec(compile(source, _PROBE_FILE, "exec"), module.__dict__)
    found = module.__dict__[function]
    if not callable(found):
        raise TypeError(f"{function} is a {type(found).__name__}, not a function")
    return found


def _describe(error: BaseException) -> str:
    """One line: the exception and the last lines of the probe that led to it."""
    frames = [
        f"line {frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == _PROBE_FILE
    ]
    message = str(error).strip() or "no message"
    where = " > ".join(frames[-_MOST_FRAMES:])
    if isinstance(error, SyntaxError) and not frames:
        where = f"line {error.lineno}"
    return f"{type(error).__name__}: {message[:300]}" + (f" (probe.py, {where})" if where else "")


def _error(kind: str, message: str, seed: int | None) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "seed": seed}}
