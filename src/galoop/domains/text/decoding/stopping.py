"""When an answer ends: one rule for every way in which text domains decode."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def stop_tokens(model: Any) -> frozenset[int]:
    """Ids of the tokens that end an answer of this model."""
    stop = model.generation_config.eos_token_id
    return frozenset(stop if isinstance(stop, list) else [stop])


def ended(tokens: Sequence[int], most: int, stop: Collection[int]) -> bool:
    """Whether an answer of at most ``most`` tokens is complete.

    A stop token in the first place does not end it: the loop of kvpress's pipeline tests only
    later tokens.
    """
    return len(tokens) >= most or (len(tokens) > 1 and tokens[-1] in stop)
