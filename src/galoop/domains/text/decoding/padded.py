"""Attention of many rows in one call: their caches side by side, shorter ones padded.

The sums run in another order than in kvpress's call for one row, so that logits differ in the last
digits (3e-5 at most were seen in float32). This serves where decisions are held against a margin
and close ones are made again exactly as kvpress makes them; :mod:`.packed` serves where not even
the last bit may differ. Entries that a head has masked are left out, which is what kvpress's fake
keys stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from galoop.domains.text.decoding.packed import CompressedCache, Piece

ATTENTION = "galoop_padded"


class PaddedRows:
    """The caches of some rows in one block per layer, with room for the tokens that follow.

    Parameters
    ----------
    caches : sequence of CompressedCache
        One for each row, at least one.
    room : int
        Tokens that may be fed to a row.

    Attributes
    ----------
    keys, values : list of Tensor, one per layer, shape (rows, H_kv, width_l + room, head_dim)
        Fed tokens stand behind the first ``width_l`` columns.
    valid : list of Tensor, one per layer, bool, shape (rows, H_kv, width_l)
        Which of the first columns hold an entry.
    """

    def __init__(self, caches: Sequence[CompressedCache], room: int) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.valid: list[torch.Tensor] = []
        for layer in range(len(caches[0].keys)):
            self._add_layer([_attended(cache, layer) for cache in caches], room)
        self.rows = [PaddedRow(self, i, c.context_length) for i, c in enumerate(caches)]

    def _add_layer(
        self, parts: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], room: int
    ) -> None:
        import torch

        first = parts[0][0]
        heads, _, dim = first.shape
        width = max(keys.shape[1] for keys, _, _ in parts)
        # Zeros, not whatever memory holds: a masked NaN would still be one.
        keys = first.new_zeros(len(parts), heads, width + room, dim)
        values = torch.zeros_like(keys)
        valid = torch.zeros(len(parts), heads, width, dtype=torch.bool, device=first.device)
        for i, (k, v, known) in enumerate(parts):
            keys[i, :, : k.shape[1]] = k
            values[i, :, : k.shape[1]] = v
            valid[i, :, : k.shape[1]] = known
        self.keys.append(keys)
        self.values.append(values)
        self.valid.append(valid)


@dataclass(eq=False)
class PaddedRow:
    """One row of a block; ``fed`` counts the tokens after the context, as in a growing cache."""

    block: PaddedRows
    index: int
    start: int
    fed: int = 0


def padded_bytes(caches: Sequence[CompressedCache], room: int) -> int:
    """Bytes of the block that these caches would need."""
    total = 0
    for layer, first in enumerate(caches[0].keys):
        width = max(c.keys[layer].shape[1] for c in caches)
        total += first.shape[0] * (width + room) * first.shape[2] * first.element_size()
    return 2 * total * len(caches)


def _attended(
    cache: CompressedCache, layer: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values (H_kv, n, head_dim) and which are entries (H_kv, n), n the fullest head's."""
    import torch

    keys, values, masked = cache.keys[layer], cache.values[layer], cache.masked[layer]
    if masked is None:
        return keys, values, torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
    counts = (~masked).sum(dim=1)
    most = max(1, int(counts.max()))
    # Keys carry their positions, so that their order in the cache has no meaning.
    order = masked.to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    index = order[..., None].expand(-1, -1, keys.shape[2])
    known = torch.arange(most, device=keys.device) < counts[:, None]
    return keys.gather(1, index), values.gather(1, index), known


class PaddedPass:
    """Where each token of a pass stands in its block, and what it sees of the tokens fed.

    Parameters
    ----------
    pieces : sequence of Piece
        Of rows of one block, at most one a row.
    """

    def __init__(self, pieces: Sequence[Piece], device: Any) -> None:
        import torch

        self.block: PaddedRows = pieces[0].cache.block
        lengths = [len(p.ids) for p in pieces]
        self.width = max(lengths)
        self.used = max(p.at + n for p, n in zip(pieces, lengths, strict=True))
        rows = [p.cache.index for p in pieces for _ in p.ids]
        columns = [p.at + i for p in pieces for i in range(len(p.ids))]
        slots = [i for n in lengths for i in range(n)]
        self.row = torch.tensor(rows, device=device)
        self.column = torch.tensor(columns, device=device)
        self.slot = torch.tensor(slots, device=device)
        # (rows, width, used): a token sees those fed before it, and itself.
        size = (len(self.block.rows), self.width, self.used)
        self.seen = torch.zeros(size, dtype=torch.bool, device=device)
        self.seen[self.row, self.slot] = (
            torch.arange(self.used, device=device) <= self.column[:, None]
        )

    def mask(self, layer: int, groups: int) -> torch.Tensor:
        """(rows, H_kv, groups * width, columns): entries of the context, then tokens fed."""
        import torch

        valid = self.block.valid[layer]
        size = (*valid.shape[:2], self.width)
        known = valid[:, :, None].expand(*size, valid.shape[2])
        seen = self.seen[:, None].expand(*size, self.used)
        both = torch.cat([known, seen], dim=-1)[:, :, None]
        return both.expand(-1, -1, groups, -1, -1).flatten(2, 3)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    galoop_pass: PaddedPass | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of every token over its own row; shapes (1, H, tokens, head_dim)."""
    import torch

    assert galoop_pass is not None
    at, layer = galoop_pass, module.layer_idx
    keys, values = at.block.keys[layer], at.block.values[layer]
    rows, kv_heads, _, dim = keys.shape
    groups = query.shape[1] // kv_heads
    first = at.block.valid[layer].shape[2]
    keys[at.row, :, first + at.column] = key[0].transpose(0, 1)
    values[at.row, :, first + at.column] = value[0].transpose(0, 1)
    asked = query.new_zeros(rows, at.width, kv_heads, groups, dim)
    asked[at.row, at.slot] = query[0].transpose(0, 1).unflatten(1, (kv_heads, groups))
    # Query heads of a group stand behind each other, so that no key is copied for them.
    found = torch.nn.functional.scaled_dot_product_attention(
        asked.permute(0, 2, 3, 1, 4).flatten(2, 3),
        keys[:, :, : first + at.used],
        values[:, :, : first + at.used],
        attn_mask=at.mask(layer, groups),
        scale=scaling,
    )
    found = found.unflatten(2, (groups, at.width)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    return found[at.row, at.slot][None], None
