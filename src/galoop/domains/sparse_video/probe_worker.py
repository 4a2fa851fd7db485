"""The isolated side of prompt probes: run ``prompt(rng)`` for some seeds.

Nothing here is trusted by the other side: a probe shares this process and can forge every reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from galoop.probing.worker import ReplyChannel, import_allowed, results


def warm(init: Mapping[str, Any]) -> None:
    """Load what probes may import once, in the parent that later forks."""
    import_allowed()


def serve(state: None, init: Mapping[str, Any], channel: ReplyChannel) -> None:
    """Answer requests ``{"source", "seeds", "salt", "most"}`` with ``{"results": [...]}``.

    Or with ``{"error": {"kind", "message", "seed"}}``, kind ``load``, ``prompt`` or ``memory``.
    """
    for request, _ in channel:
        channel.reply(run(request))


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """The prompts of one request; see :func:`serve`."""
    return results(
        request,
        "prompt",
        lambda prompt, rng: prompt(rng),
        lambda value: _fault_of(value, request["most"]),
        fault_kind="prompt",
    )


def _fault_of(value: Any, most: int) -> str:
    """Why ``value`` is no prompt, or an empty string."""
    if isinstance(value, str) and len(value) <= most:
        return ""
    size = f" of {len(value)} characters" if isinstance(value, str) else ""
    return f"prompt returned a {type(value).__name__}{size}"
