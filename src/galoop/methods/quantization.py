"""The parts that quantized caches are made of: groups, levels, bit packing, rotations.

Shapes: a head's cache is (heads, tokens, channels), ``(H, n, D)``. A *group* shares one scale, and
one offset unless it is symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)


def pack_bits(codes: torch.Tensor, width: int) -> torch.Tensor:
    """Pack whole numbers below ``2**width`` without a gap, eight of them in ``width`` bytes.

    Parameters
    ----------
    codes : Tensor
        Any shape; taken in row-major order.
    width : int
        1 to 8.

    Returns
    -------
    Tensor, uint8, shape (ceil(numbers * width / 8),)
        Lowest bits first.
    """
    import torch

    flat = codes.flatten().to(torch.int64)
    padded = torch.zeros(-(-flat.shape[0] // 8) * 8, dtype=torch.int64)
    padded[: flat.shape[0]] = flat
    shifts = torch.arange(8) * width
    # The parts of a sum have no bit in common, so that it is their union, in any sign.
    words = (padded.reshape(-1, 8) << shifts).sum(dim=1)
    packed = words[:, None].view(torch.uint8)[:, :width]
    return packed.flatten()[: -(-flat.shape[0] * width // 8)].clone()


def unpack_bits(data: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """The inverse of :func:`pack_bits`: ``count`` whole numbers, uint8."""
    import torch

    eights = -(-count // 8)
    padded = torch.zeros(eights, 8, dtype=torch.uint8)
    room = torch.zeros(eights * width, dtype=torch.uint8)
    room[: data.shape[0]] = data
    padded[:, :width] = room.reshape(eights, width)
    words = padded.view(torch.int64)
    shifts = torch.arange(8) * width
    codes = (words >> shifts) & (2**width - 1)
    return codes.flatten()[:count].to(torch.uint8)


def split_channels(x: torch.Tensor, size: int) -> torch.Tensor:
    """Groups along the tokens of each channel: (H, n, D) -> (H * D * k, n / k).

    Channels keep their own scale; the tokens are cut into k equal groups of at most ``size``. The
    last token fills up the last group where k does not divide n.
    """
    return _cut(x.transpose(1, 2), size)


def join_channels(groups: torch.Tensor, heads: int, tokens: int, channels: int) -> torch.Tensor:
    """The inverse of :func:`split_channels`: (H, n, D)."""
    return groups.reshape(heads, channels, -1)[..., :tokens].transpose(1, 2)


def split_tokens(x: torch.Tensor, size: int) -> torch.Tensor:
    """Groups along the channels of each token: (H, n, D) -> (H * n * k, D / k), as above."""
    return _cut(x, size)


def join_tokens(groups: torch.Tensor, heads: int, tokens: int, channels: int) -> torch.Tensor:
    """The inverse of :func:`split_tokens`: (H, n, D)."""
    return groups.reshape(heads, tokens, -1)[..., :channels]


def group_count(length: int, size: int) -> int:
    """Groups of at most ``size`` that a row of ``length`` is cut into."""
    return max(1, -(-length // size))


def group_width(length: int, size: int) -> int:
    """Numbers in each of these groups, filled up where the last one is short."""
    return -(-length // group_count(length, size))


def _cut(x: torch.Tensor, size: int) -> torch.Tensor:
    import torch

    length = x.shape[-1]
    whole = group_count(length, size) * group_width(length, size)
    if whole > length:
        x = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], whole - length)], dim=-1)
    return x.reshape(-1, group_width(length, size))


@dataclass(frozen=True)
class Grid:
    """How the numbers of a group are rounded.

    Attributes
    ----------
    width : int
        Bits a number, 1 to 8.
    symmetric : bool
        The levels lie around zero and no offset is stored; else they span the group's range.
    shrink : float
        Factor on the range before rounding: below 1, what lies outside is clipped. 0 looks for the
        factor with the least squared error, group by group.
    levels : {"even", "normal"}
        Evenly spaced, or denser in the middle: quantiles of a normal distribution (as in the NF4
        type of QLoRA, arXiv:2305.14314).
    keep_norm : bool
        Scale each rounded group so that its norm is what it was.
    """

    width: int
    symmetric: bool = False
    shrink: float = 1.0
    levels: str = "even"
    keep_norm: bool = False

    @property
    def stored(self) -> int:
        """16-bit numbers that a group stores beside its codes."""
        return 1 if self.symmetric else 2

    def places(self) -> torch.Tensor:
        """The levels within a range from 0 to 1, ascending."""
        import torch

        count = 2**self.width
        if self.levels == "even" or count == 2:
            return torch.linspace(0.0, 1.0, count)
        quantiles = (torch.arange(count) + 0.5) / count
        places = torch.special.ndtri(quantiles.double()).float()
        return (places - places[0]) / (places[-1] - places[0])


@dataclass(frozen=True)
class Groups:
    """Rounded groups.

    Attributes
    ----------
    codes : Tensor, uint8, shape (groups, size)
    span : Tensor, float32, shape (groups, 1)
        Distance from the lowest to the highest level; exactly representable in 16 bits.
    low : Tensor, float32, shape (groups, 1)
        The lowest level; ``-span / 2`` where the grid is symmetric.
    """

    codes: torch.Tensor
    span: torch.Tensor
    low: torch.Tensor


def quantise(x: torch.Tensor, grid: Grid) -> Groups:
    """Round groups (groups, size) to a grid.

    With even levels, no shrinking and an offset this is round-to-nearest between the group's
    minimum and maximum, as in KIVI (arXiv:2402.02750), with both stored in 16 bits.
    """
    x = x.float()
    if grid.shrink > 0:
        return _rounded(x, grid, grid.shrink)
    best = _rounded(x, grid, 1.0)
    least = _error(x, best, grid)
    for shrink in (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3):  # the last ones for one bit
        tried = _rounded(x, grid, shrink)
        error = _error(x, tried, grid)
        better = error < least
        best = Groups(
            tried.codes.where(better, best.codes),
            tried.span.where(better, best.span),
            tried.low.where(better, best.low),
        )
        least = error.where(better, least)
    return best


def dequantise(groups: Groups, grid: Grid) -> torch.Tensor:
    """The numbers that codes stand for, float32, shape (groups, size)."""
    return groups.low + groups.span * grid.places()[groups.codes.long()]


def _rounded(x: torch.Tensor, grid: Grid, shrink: float) -> Groups:
    import torch

    if grid.symmetric:
        span = _stored(2 * x.abs().amax(dim=1, keepdim=True) * shrink)
        low = -span / 2
    else:
        least, most = x.amin(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)
        cut = (most - least) * (1 - shrink) / 2
        low = _stored(least + cut)
        span = _stored((most - cut - low).clamp_min(0.0))  # low may have been rounded up
    places = grid.places()
    at = ((x - low) / span.clamp_min(1e-30)).clamp(0.0, 1.0)
    if grid.levels == "even":
        codes = (at * (places.shape[0] - 1)).round()
    else:
        codes = torch.bucketize(at, (places[1:] + places[:-1]) / 2)
    groups = Groups(codes.to(torch.uint8), span, low)
    if not grid.keep_norm:
        return groups
    rounded = dequantise(groups, grid)
    factor = x.norm(dim=1, keepdim=True) / rounded.norm(dim=1, keepdim=True).clamp_min(1e-30)
    span, low = _stored(span * factor), _stored(low * factor)
    return Groups(groups.codes, span, -span / 2 if grid.symmetric else low)


def _stored(x: torch.Tensor) -> torch.Tensor:
    """What is left of a number in 16 bits; codes are chosen for what the decoder will see."""
    return x.clamp(-65504.0, 65504.0).half().float()


def _error(x: torch.Tensor, groups: Groups, grid: Grid) -> torch.Tensor:
    return (x - dequantise(groups, grid)).square().sum(dim=1, keepdim=True)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Orthonormal Walsh-Hadamard transform along the last axis; its own inverse.

    Where the length is no power of two, each block of the largest power of two that divides it is
    transformed. Source of the idea: QuaRot (arXiv:2404.00456).
    """
    import torch

    length = x.shape[-1]
    size = length & -length
    out = x.float().reshape(*x.shape[:-1], length // size, size)
    step = 1
    while step < size:
        pairs = out.reshape(*out.shape[:-1], size // (2 * step), 2, step)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        out = torch.stack([first + second, first - second], dim=-2).reshape(out.shape)
        step *= 2
    return (out / size**0.5).reshape(x.shape)


def remove_rope(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Keys before rotary embedding from keys after it: (H, n, D), float32.

    Parameters
    ----------
    cos, sin : Tensor, shape (n, R)
        R <= D channels are rotated. A table that also scales (YaRN) is divided out.
    """
    scale = (cos[:, :1].square() + sin[:, :1].square()).clamp_min(1e-12)
    return _rotated(keys, cos / scale, -sin / scale)


def apply_rope(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Keys after rotary embedding: the inverse of :func:`remove_rope`."""
    return _rotated(keys, cos, sin)


def _rotated(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    import torch

    size = cos.shape[-1]
    x, rest = keys[..., :size].float(), keys[..., size:].float()
    first, second = x[..., : size // 2], x[..., size // 2 :]
    turned = torch.cat([-second, first], dim=-1)
    return torch.cat([x * cos + turned * sin, rest], dim=-1)
