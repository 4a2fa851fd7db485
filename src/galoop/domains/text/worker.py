"""The isolated side: run a probe's ``build`` for some seeds and hand back what it returned.

Nothing here is trusted by the other side: a probe shares this process and can forge every reply.
So this module does not validate; it only turns results and exceptions into JSON. It imports no
torch, to start fast.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from galoop.domains.text.contract import ALLOWED_MODULES
from galoop.domains.text.tokens import TokenCounter

PROBE_FILE = "probe.py"
_MOST_FRAMES = 3


class ReplyChannel(Protocol):
    """The part of :class:`galoop.isolation.channel.Channel` that is used here."""

    def __iter__(self) -> Any:
        """Yield (request, file descriptors)."""

    def reply(self, obj: Mapping[str, Any]) -> None:
        """Send one JSON reply."""


def warm(init: Mapping[str, Any]) -> TokenCounter:
    """Load the tokenizer once, in the parent that later forks.

    ``init["tokenizer_dir"]`` is the folder with ``tokenizer.json``.
    """
    counter = TokenCounter(Path(init["tokenizer_dir"]))
    counter.count("warm up")
    # Probes may import these: load them before the fork, not in every child.
    for name in ALLOWED_MODULES:
        importlib.import_module(name)
    return counter


def serve(state: TokenCounter, init: Mapping[str, Any], channel: ReplyChannel) -> None:
    """Answer requests ``{"source", "seeds", "length", "salt"}`` with what ``build`` returned.

    The reply is ``{"results": [...]}`` in the order of the seeds, or
    ``{"error": {"kind", "message", "seed"}}`` with kind ``load``, ``build``, ``memory`` or
    ``result``.
    """
    for request, _ in channel:
        channel.reply(run(state.count, request))


def run(count_tokens: Callable[[str], int], request: Mapping[str, Any]) -> dict[str, Any]:
    """Build the examples of one request; see :func:`serve`."""
    # A probe must not use the global generator. Every fork would inherit the same state of it and
    # so look deterministic; a different salt for each fork brings the difference to light.
    random.seed(f"salt {request['salt']}")
    seed: int | None = None
    try:
        build = _load(request["source"])
        results = []
        for seed in request["seeds"]:
            value = build(random.Random(seed), request["length"], _strict(count_tokens))
            fault = _fault_of(value, 100_000 + 100 * request["length"])
            if fault:
                return _error("result", fault, seed)
            results.append(value)
    except MemoryError:
        return _error("memory", "it used more memory than it may", seed)
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like are the probe's too
        return _error("load" if seed is None else "build", describe(error), seed)
    return {"results": results}


def _load(source: str) -> Callable[..., Any]:
    module = ModuleType("probe")
    # dataclasses look their module up by name.
    sys.modules["probe"] = module
    exec(compile(source, PROBE_FILE, "exec"), module.__dict__)
    build = module.__dict__["build"]
    if not callable(build):
        raise TypeError(f"build is a {type(build).__name__}, not a function")
    return build


def _strict(count_tokens: Callable[[str], int]) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"count_tokens takes a str, not {type(text).__name__}")
        return count_tokens(text)

    return count


def _fault_of(value: Any, most_bytes: int) -> str:
    """Why ``value`` cannot travel to the other side, or an empty string."""
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return f"build returned something that is not text and lists of text: {error}"
    if size > most_bytes:
        return f"build returned {size} bytes, far more than an example has"
    return ""


def describe(error: BaseException) -> str:
    """One line: the exception and the last lines of the probe that led to it."""
    frames = [
        f"line {frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == PROBE_FILE
    ]
    message = str(error).strip() or "no message"
    where = " > ".join(frames[-_MOST_FRAMES:])
    if isinstance(error, SyntaxError) and not frames:
        where = f"line {error.lineno}"
    return f"{type(error).__name__}: {message[:300]}" + (f" (probe.py, {where})" if where else "")


def _error(kind: str, message: str, seed: int | None) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "seed": seed}}
