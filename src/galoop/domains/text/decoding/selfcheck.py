"""Whether packed passes give the bits of one-by-one passes on this model and this processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from galoop.domains.text.decoding.packed import CompressedCache, GrowingCache, Piece, forward

if TYPE_CHECKING:
    import torch

    from galoop.domains.text.decoding.invariance import Grouping

#: (kept entries, question tokens, steps): short and long, odd and even, some of equal shape.
_CASES = ((40, 7, 3), (61, 13, 3), (61, 13, 3), (100, 1, 2), (33, 20, 3), (33, 20, 3), (250, 31, 3))


def same_bits(model: Any, grouping: Grouping | None) -> bool:
    """Compare every logit of packed and one-by-one passes over random tokens."""
    import torch

    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size

    def draw(n: int) -> list[int]:
        ids: list[int] = torch.randint(0, vocabulary, (n,), generator=generator).tolist()
        return ids

    pieces: list[Piece] = []
    expected: list[torch.Tensor] = []
    with torch.inference_mode():
        for kept, question, steps in _CASES:
            cache, calls = _context(model, draw(kept)), [draw(question)]
            calls += [draw(1) for _ in range(steps)]
            growing = GrowingCache(cache, question + steps)
            at = 0
            for ids in calls:
                pieces.append(Piece(growing, ids, at))
                at += len(ids)
            expected += _one_by_one(model, cache, calls)
        found = forward(model, pieces, grouping)
    return bool(torch.equal(found, torch.stack(expected)))


def _context(model: Any, ids: list[int]) -> CompressedCache:
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    model.model(input_ids=torch.tensor([ids], device=model.device), past_key_values=cache)
    layers: list[Any] = cache.layers
    return CompressedCache(
        [layer.keys[0] for layer in layers],
        [layer.values[0] for layer in layers],
        [None] * len(layers),
        len(ids),
    )


def _one_by_one(model: Any, made: CompressedCache, calls: list[list[int]]) -> list[torch.Tensor]:
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(made.keys, made.values, strict=True)):
        cache.update(keys[None], values[None], layer)
    at, logits = made.context_length, []
    for ids in calls:
        out = model(
            input_ids=torch.tensor([ids], device=model.device),
            position_ids=torch.arange(at, at + len(ids), device=model.device)[None],
            past_key_values=cache,
            logits_to_keep=1,
        )
        logits.append(out.logits[0, -1])
        at += len(ids)
    return logits
