"""Steps of a codec that programs are put together from; candidates may import them.

Shapes: one layer's keys or values are (heads, tokens, channels), ``(H, n, D)``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from galoop.methods.codec import Reader, Shape, Writer
from galoop.methods.quantization import (
    Grid,
    Groups,
    dequantise,
    group_count,
    group_width,
    hadamard,
    join_channels,
    join_tokens,
    quantise,
    split_channels,
    split_tokens,
)

if TYPE_CHECKING:
    import torch

Outliers = Literal["key norm", "value norm", "key deviation", "value deviation", "span"]
Depth = Literal["even", "early", "late", "ends", "middle", "measured"]


@dataclass(frozen=True)
class Rounding:
    """How keys, or values, are rounded, at whatever width.

    Attributes
    ----------
    axis : {"channel", "token"}
        A group is of one channel (along tokens) or of one token (along channels).
    group : int
        Most numbers in a group.
    symmetric, shrink, levels, keep_norm
        See :class:`galoop.methods.quantization.Grid`.
    rotate : bool
        Round the Hadamard transform of the channels.
    center : bool
        Round what is left when the mean over the tokens is taken off each channel.
    """

    axis: Literal["channel", "token"] = "token"
    group: int = 64
    symmetric: bool = False
    shrink: float = 1.0
    levels: str = "even"
    keep_norm: bool = False
    rotate: bool = False
    center: bool = False

    def grid(self, width: int) -> Grid:
        """The grid at a width."""
        return Grid(width, self.symmetric, self.shrink, self.levels, self.keep_norm)

    def bytes(self, heads: int, tokens: int, dim: int, width: int) -> int:
        """Bytes of one layer's keys or values."""
        if not tokens:
            return 0
        count, size = self._groups(heads, tokens, dim)
        side = 2 * self.grid(width).stored * count + (2 * heads * dim if self.center else 0)
        return -(-count * size * width // 8) + side

    def write(self, out: Writer, x: torch.Tensor, width: int) -> None:
        """Round ``x`` and append it."""
        if not x.shape[1]:
            return
        x = hadamard(x) if self.rotate else x.float()
        if self.center:
            mean = x.mean(dim=1, keepdim=True).half().float()
            out.half(mean)
            x = x - mean
        groups = quantise(self._split(x), self.grid(width))
        out.codes(groups.codes, width)
        out.half(groups.span)
        if not self.symmetric:
            out.half(groups.low)

    def read(self, read: Reader, heads: int, tokens: int, dim: int, width: int) -> torch.Tensor:
        """What :meth:`write` wrote, (heads, tokens, channels), float32."""
        if not tokens:
            return read.half(heads, 0, dim)
        mean = read.half(heads, 1, dim) if self.center else None
        count, size = self._groups(heads, tokens, dim)
        codes, span = read.codes(width, count, size), read.half(count, 1)
        low = -span / 2 if self.symmetric else read.half(count, 1)
        join = join_channels if self.axis == "channel" else join_tokens
        x = join(dequantise(Groups(codes, span, low), self.grid(width)), heads, tokens, dim)
        x = x if mean is None else x + mean
        return hadamard(x) if self.rotate else x

    def spread(self, x: torch.Tensor) -> float:
        """Mean squared range of a group over the mean square: how hard ``x`` is to round."""
        if not x.shape[1]:
            return 1.0
        x = hadamard(x) if self.rotate else x.float()
        if self.center:
            x = x - x.mean(dim=1, keepdim=True)
        groups = self._split(x)
        span = groups.amax(dim=1) - groups.amin(dim=1)
        return float(span.square().mean() / x.square().mean().clamp_min(1e-30))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return (split_channels if self.axis == "channel" else split_tokens)(x, self.group)

    def _groups(self, heads: int, tokens: int, dim: int) -> tuple[int, int]:
        row, rows = (tokens, heads * dim) if self.axis == "channel" else (dim, heads * tokens)
        return rows * group_count(row, self.group), group_width(row, self.group)


def exact_tokens(
    keys: torch.Tensor, values: torch.Tensor, count: int, first: int, last: int, by: Outliers
) -> torch.Tensor:
    """Indices of ``count`` tokens of a layer to be kept in 16 bits, ascending.

    The ``first`` of the context come first, then the ``last``, then those that stand out most:
    by the norm of their key or value, by its distance from the mean, or by its largest number.
    """
    import torch

    length = keys.shape[1]
    x = (values if by.startswith("value") else keys).float()
    if by.endswith("deviation"):
        x = x - x.mean(dim=1, keepdim=True)
    score = (x.abs().amax(dim=-1) if by == "span" else x.norm(dim=-1)).mean(dim=0)
    score[:first] = score[:first] + 1e6
    if last:
        score[-last:] = score[-last:] + 1e5
    return torch.topk(score, min(count, length)).indices.sort().values


def other_tokens(exact: torch.Tensor, length: int) -> torch.Tensor:
    """The tokens that are not among the exact ones, ascending."""
    import torch

    rest = torch.ones(length, dtype=torch.bool)
    rest[exact] = False
    return rest.nonzero()[:, 0]


@dataclass(frozen=True)
class Fit:
    """What a budget pays, from the shape alone.

    Attributes
    ----------
    keys, values : Rounding
        With groups as large as the budget makes them.
    exact : int
        Tokens of each layer that stay in 16 bits.
    allowed : int
        Bytes for all.
    """

    keys: Rounding
    values: Rounding
    exact: int
    allowed: int
    shape: Shape

    def bytes(self, widths: Sequence[int]) -> int:
        """Bytes of a cache with these widths (keys and values of each layer in turn)."""
        s = self.shape
        rest = s.length - self.exact
        total = Writer.OVERHEAD + s.layers * (2 * self.exact + 4 * s.heads * self.exact * s.dim)
        total += 2 * len(widths)
        for i, width in enumerate(widths):
            total += (self.values if i % 2 else self.keys).bytes(s.heads, rest, s.dim, width)
        return total

    def widths(self, weights: Sequence[float]) -> list[int]:
        """Widths that fill the budget, one for each of ``weights``.

        All begin with one bit. The next bit goes where it takes off the most: a bit more divides
        the squared error by four, and ``weights`` say how much the error of each counts.
        """
        widths = [1] * len(weights)
        total = self.bytes(widths)
        s, rest = self.shape, self.shape.length - self.exact
        heap = [(-weight, i) for i, weight in enumerate(weights)]
        heapq.heapify(heap)
        while heap:
            gain, i = heapq.heappop(heap)
            side = self.values if i % 2 else self.keys
            more = side.bytes(s.heads, rest, s.dim, widths[i] + 1)
            more -= side.bytes(s.heads, rest, s.dim, widths[i])
            if widths[i] == 8 or total + more > self.allowed:
                continue
            widths[i] += 1
            total += more
            heapq.heappush(heap, (gain / 4, i))
        return widths


def fit(shape: Shape, bits: float, keys: Rounding, values: Rounding, exact: int) -> Fit:
    """Make a program fit its budget: first fewer exact tokens, then larger groups."""
    made = Fit(keys, values, min(exact, shape.length), shape.budget(bits), shape)
    lowest = [1] * (2 * shape.layers)
    while made.bytes(lowest) > made.allowed and made.exact:
        made = replace(made, exact=made.exact - 1)
    most = max(shape.length, shape.dim)
    while made.bytes(lowest) > made.allowed and min(made.keys.group, made.values.group) < most:
        side = "keys" if made.keys.group <= made.values.group else "values"
        rounding = getattr(made, side)
        made = replace(made, **{side: replace(rounding, group=2 * rounding.group)})
    return made


def weights(depth: Depth, lean: float, spreads: Sequence[float]) -> list[float]:
    """How much the error of keys and values of each layer counts.

    Parameters
    ----------
    depth : str
        Which layers get more bits: none, the first or last ones, both, the ones between them, or
        those that are hard to round.
    lean : float
        Bits that keys get above values.
    spreads : sequence of float
        :meth:`Rounding.spread` of keys and values of each layer in turn.
    """
    layers = len(spreads) // 2
    found = []
    for i, spread in enumerate(spreads):
        at = (i // 2) / max(1, layers - 1)
        place = {
            "early": 1 - at,
            "late": at,
            "ends": abs(2 * at - 1),
            "middle": 1 - abs(2 * at - 1),
        }
        weight = spread if depth == "measured" else 4.0 ** place.get(depth, 0.0)
        found.append(weight * 4.0 ** (lean if i % 2 == 0 else 0.0))
    return found
