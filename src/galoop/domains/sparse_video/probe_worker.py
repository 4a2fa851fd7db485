"""The isolated side of prompt probes: run ``prompt(rng)`` for some seeds.

Nothing here is trusted by the other side: a probe shares this process and can forge every reply.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from galoop.domains.text.contract import ALLOWED_MODULES
from galoop.domains.text.worker import PROBE_FILE, ReplyChannel, describe


def warm(init: Mapping[str, Any]) -> None:
    """Load what probes may import once, in the parent that later forks."""
    for name in ALLOWED_MODULES:
        importlib.import_module(name)


def serve(state: None, init: Mapping[str, Any], channel: ReplyChannel) -> None:
    """Answer requests ``{"source", "seeds", "salt", "most"}`` with ``{"results": [...]}``.

    Or with ``{"error": {"kind", "message", "seed"}}``, kind ``load``, ``prompt`` or ``memory``.
    """
    for request, _ in channel:
        channel.reply(run(request))


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """The prompts of one request; see :func:`serve`."""
    # What a probe draws from the global generator must differ between forks, to be found out.
    random.seed(f"salt {request['salt']}")
    seed: int | None = None
    try:
        prompt = _load(request["source"])
        results = []
        for seed in request["seeds"]:
            value = prompt(random.Random(seed))
            if not isinstance(value, str) or len(value) > request["most"]:
                kind = type(value).__name__
                size = f" of {len(value)} characters" if isinstance(value, str) else ""
                return _error("prompt", f"prompt returned a {kind}{size}", seed)
            results.append(value)
    except MemoryError:
        return _error("memory", "it used more memory than it may", seed)
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like are the probe's too
        return _error("load" if seed is None else "prompt", describe(error), seed)
    return {"results": results}


def _load(source: str) -> Callable[..., Any]:
    module = ModuleType("probe")
    sys.modules["probe"] = module  # dataclasses look their module up by name
    exec(compile(source, PROBE_FILE, "exec"), module.__dict__)
    prompt = module.__dict__["prompt"]
    if not callable(prompt):
        raise TypeError(f"prompt is a {type(prompt).__name__}, not a function")
    return prompt


def _error(kind: str, message: str, seed: int | None) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "seed": seed}}
