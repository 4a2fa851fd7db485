"""optimum-quanto's quantizer as a codec (extra ``quantized``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.codec import Cache, Reader, Shape, Writer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class QuantoCodec:
    """optimum-quanto's 4- or 2-bit quantizer on each token, as transformers' quantized cache.

    quanto's own unpacking compiles a C++ extension when it is first used, which a confined process
    cannot; codes are packed by galoop, and everything else is quanto's.
    """

    bits: float
    group: int = 64

    def encode(self, cache: Cache) -> dict[str, torch.Tensor]:
        """Codes, scales and shifts of every layer."""
        import torch
        from optimum.quanto import MaxOptimizer, qint2, qint4

        width, group = self.plan(cache.shape)
        kind = qint4 if width == 4 else qint2
        out = Writer()
        scales = []
        for layer in zip(cache.keys, cache.values, strict=True):
            for x in layer:
                x = x[None].contiguous()
                scale, shift = MaxOptimizer()(x, kind, 0, group)
                codes = torch.ops.quanto.quantize_affine(x, width, 0, group, scale, shift)
                out.codes(codes, width)
                scales += [scale.flatten(), shift.flatten()]
        half = torch.float16 if cache.keys.dtype == torch.float32 else cache.keys.dtype
        return {**out.tensors(), "scales": torch.cat(scales).to(half)}

    def decode(
        self, tensors: Mapping[str, torch.Tensor], shape: Shape
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of every layer, each (layers, heads, length, dim)."""
        import torch
        from optimum.quanto import qint2, qint4
        from optimum.quanto.tensor.weights.qbits import WeightQBitsTensor

        width, group = self.plan(shape)
        kind = qint4 if width == 4 else qint2
        read = Reader(tensors)
        groups = shape.heads * shape.length * shape.dim // group
        dtype = tensors["scales"].dtype
        if dtype == torch.float16:
            dtype = torch.float32
        size = torch.Size((1, shape.heads, shape.length, shape.dim))
        stride = torch.empty(size, device="meta").stride()
        found = []
        for scale, shift in tensors["scales"].to(dtype).reshape(-1, 2, groups, 1):
            codes = read.codes(width, groups, group)
            made = WeightQBitsTensor(kind, 0, group, size, stride, codes, scale, shift)
            made._data = codes  # not packed: quanto's unpacking would compile its extension
            found.append(made.dequantize()[0])
        both = torch.stack(found).reshape(shape.layers, 2, shape.heads, shape.length, shape.dim)
        return both[:, 0], both[:, 1]

    def plan(self, shape: Shape) -> tuple[int, int]:
        """Width of the codes and numbers in a group."""
        group = min(self.group, shape.dim)
        overhead = 8 * (Writer.OVERHEAD + 32) / shape.numbers
        return (4 if 4 + 32 / group + overhead <= self.bits else 2), group
