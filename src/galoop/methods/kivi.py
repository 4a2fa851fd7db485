"""KIVI: keys in groups along the tokens of each channel, values along the channels of each token.

Source: Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache",
arXiv:2402.02750. A group of numbers x is stored as ``round((x - min) / scale)`` with
``scale = (max - min) / (2**width - 1)``; minimum and range take 16 bits each. The last tokens of
the context stay in 16 bits (the residual window): as many as the budget pays after the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.codec import Cache, Reader, Shape, Writer
from galoop.methods.quantization import (
    Grid,
    Groups,
    dequantise,
    group_count,
    group_width,
    join_channels,
    join_tokens,
    quantise,
    split_channels,
    split_tokens,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Kivi:
    """A codec that fills a budget: the widest codes that fit, then the longest residual window.

    Attributes
    ----------
    bits : float
        Mean bits per number of the cache, everything counted.
    group : int
        Most numbers in a group.
    keys_by_channel : bool
        False groups keys as values are: plain round-to-nearest for each token.
    """

    bits: float
    group: int = 64
    keys_by_channel: bool = True

    def encode(self, cache: Cache) -> dict[str, torch.Tensor]:
        """Codes, ranges and the residual window of every layer."""
        width, residual = self.plan(cache.shape)
        out = Writer()
        rest = cache.shape.length - residual
        for keys, values in zip(cache.keys, cache.values, strict=True):
            for x, by_channel in ((keys, self.keys_by_channel), (values, False)):
                split = split_channels if by_channel else split_tokens
                if rest:
                    groups = quantise(split(x[:, :rest], self.group), Grid(width))
                    out.codes(groups.codes, width)
                    out.half(groups.span)
                    out.half(groups.low)
                out.half(x[:, rest:])
        return out.tensors()

    def decode(
        self, tensors: Mapping[str, torch.Tensor], shape: Shape
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of every layer, each (layers, heads, length, dim)."""
        import torch

        width, residual = self.plan(shape)
        read = Reader(tensors)
        rest = shape.length - residual
        found: list[torch.Tensor] = []
        for _ in range(shape.layers):
            for by_channel in (self.keys_by_channel, False):
                parts = []
                if rest:
                    count, size = self._groups(shape, rest, by_channel)
                    codes = read.codes(width, count, size)
                    groups = Groups(codes, read.half(count, 1), read.half(count, 1))
                    join = join_channels if by_channel else join_tokens
                    x = dequantise(groups, Grid(width))
                    parts.append(join(x, shape.heads, rest, shape.dim))
                parts.append(read.half(shape.heads, residual, shape.dim))
                found.append(torch.cat(parts, dim=1))
        both = torch.stack(found).reshape(shape.layers, 2, shape.heads, shape.length, shape.dim)
        return both[:, 0], both[:, 1]

    def plan(self, shape: Shape) -> tuple[int, int]:
        """Width of the codes and length of the residual window that the budget pays."""
        allowed = shape.budget(self.bits)
        width = next((w for w in range(8, 1, -1) if self.bytes(shape, w, 0) <= allowed), 1)
        residual = 0
        while residual < shape.length and self.bytes(shape, width, residual + 1) <= allowed:
            residual += 1
        return width, residual

    def bytes(self, shape: Shape, width: int, residual: int) -> int:
        """Bytes that a cache takes."""
        rest = shape.length - residual
        total = 0
        for by_channel in (self.keys_by_channel, False):
            if rest:
                count, size = self._groups(shape, rest, by_channel)
                total += -(-count * size * width // 8) + 4 * count
            total += 2 * shape.heads * residual * shape.dim
        return shape.layers * total + Writer.OVERHEAD

    def _groups(self, shape: Shape, tokens: int, by_channel: bool) -> tuple[int, int]:
        row = tokens if by_channel else shape.dim
        rows = shape.heads * (shape.dim if by_channel else tokens)
        return rows * group_count(row, self.group), group_width(row, self.group)
