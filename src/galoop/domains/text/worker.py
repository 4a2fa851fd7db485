"""The isolated side: run a probe's ``build`` for some seeds and hand back what it returned.

Nothing here is trusted by the other side: a probe shares this process and can forge every reply.
So this module does not validate; it only turns results and exceptions into JSON. It imports no
torch, to start fast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from galoop.domains.text.tokens import TokenCounter
from galoop.probing.worker import ReplyChannel, import_allowed, results


def warm(init: Mapping[str, Any]) -> TokenCounter:
    """Load the tokenizer once, in the parent that later forks.

    ``init["tokenizer_dir"]`` is the folder with ``tokenizer.json``.
    """
    counter = TokenCounter(Path(init["tokenizer_dir"]))
    counter.count("warm up")
    import_allowed()
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
    count, length = _strict(count_tokens), request["length"]
    return results(
        request,
        "build",
        lambda build, rng: build(rng, length, count),
        lambda value: _fault_of(value, 100_000 + 100 * length),
        fault_kind="result",
    )


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
