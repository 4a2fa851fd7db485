"""Scores and choices for selectors: what programs of the grammar are made of, and others may use.

A *score* says how much an entry of the cache is worth to a row. It is made of what it keeps of the
context, its index, and of the step at hand. Every class here has two methods:

``index(keys, values)``
    keys and values of a layer's context, (1, J, n, D) -> dict of tensors.
``score(index, step)``
    -> (1, H, R, L), the higher the more. Entries that a row does not see may hold anything.

:mod:`.keys` has scores by approximate products with the keys, :mod:`.others` those by norms,
positions and earlier choices, :mod:`.shapes` what is done to scores, :mod:`.choice` the choice
within the budget.
"""

from galoop.domains.sparse_decoding.masks import as_mask
from galoop.domains.sparse_decoding.scores.choice import choose
from galoop.domains.sparse_decoding.scores.keys import (
    PageBounds,
    PageMeans,
    Projected,
    Quantised,
    Rounded,
    Subset,
)
from galoop.domains.sparse_decoding.scores.others import (
    Below,
    KeyNorm,
    Previous,
    Recency,
    Score,
    ValueNorm,
    indices,
    part,
)
from galoop.domains.sparse_decoding.scores.shapes import (
    grouped,
    interleave,
    maximum,
    pool,
    rank,
    softmax,
    spread,
    zscore,
)

__all__ = [
    "Below",
    "KeyNorm",
    "PageBounds",
    "PageMeans",
    "Previous",
    "Projected",
    "Quantised",
    "Recency",
    "Rounded",
    "Score",
    "Subset",
    "ValueNorm",
    "as_mask",
    "choose",
    "grouped",
    "indices",
    "interleave",
    "maximum",
    "part",
    "pool",
    "rank",
    "softmax",
    "spread",
    "zscore",
]
