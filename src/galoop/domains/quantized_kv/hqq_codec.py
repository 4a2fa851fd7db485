"""HQQ's quantizer as a codec (extra ``quantized``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.codec import Cache, Reader, Shape, Writer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class HqqCodec:
    """HQQ's quantizer on each token, as transformers' quantized cache calls it with axis 1.

    The codes, scales and zero points are HQQ's; the codes are packed without a gap (HQQ's own
    packing takes 3.2 bits for 3). Scales and zero points take 16 bits, in the cache's own type
    where that has 16. Widths: 8, 4, 3, 2, 1; the widest that the budget pays.
    """

    bits: float
    group: int = 64

    def encode(self, cache: Cache) -> dict[str, torch.Tensor]:
        """Codes, scales and zero points of every layer."""
        import torch
        from hqq.core.quantize import Quantizer

        width, group = self.plan(cache.shape)
        out = Writer()
        scales = []
        for layer in zip(cache.keys, cache.values, strict=True):
            for x in layer:
                codes, meta = Quantizer.quantize(
                    x.reshape(-1, x.shape[-1]),
                    nbits=width,
                    group_size=group,
                    axis=1,
                    bitpack=False,
                    device="cpu",
                    compute_dtype=x.dtype,
                )
                out.codes(codes.float(), width)
                scales += [meta["scale"].flatten(), meta["zero"].flatten()]
        kind = torch.float16 if cache.keys.dtype == torch.float32 else cache.keys.dtype
        return {**out.tensors(), "scales": torch.cat(scales).to(kind)}

    def decode(
        self, tensors: Mapping[str, torch.Tensor], shape: Shape
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of every layer, each (layers, heads, length, dim)."""
        import torch
        from hqq.core.quantize import Quantizer

        width, group = self.plan(shape)
        read = Reader(tensors)
        kind = tensors["scales"].dtype
        if kind == torch.float16:
            kind = torch.float32
        groups = shape.heads * shape.length * shape.dim // group
        scales = tensors["scales"].to(kind).reshape(-1, 2, groups, 1)
        found = []
        for scale, zero in scales:
            meta = {
                "nbits": width,
                "group_size": group,
                "shape": (shape.heads, shape.length, shape.dim),
                "scale": scale,
                "zero": zero,
                "axis": 1,
                "packing": None,
                "compute_dtype": kind,
            }
            found.append(Quantizer.dequantize(read.codes(width, groups, group), meta))
        both = torch.stack(found).reshape(shape.layers, 2, shape.heads, shape.length, shape.dim)
        return both[:, 0], both[:, 1]

    def plan(self, shape: Shape) -> tuple[int, int]:
        """Width of the codes and numbers in a group."""
        group = min(self.group, shape.dim)
        side = 32 / group
        overhead = 8 * (Writer.OVERHEAD + 32) / shape.numbers
        fitting = [w for w in (8, 4, 3, 2, 1) if w + side + overhead <= self.bits]
        return (fitting or [1])[0], group
