"""What a codec of a KV cache works with: the cache, its shape, and a stream of packed numbers.

A codec has ``encode(cache) -> dict of tensors`` and ``decode(tensors, shape) -> (keys, values)``.
What it may know while decoding is the shape, the model's rotary tables and what it encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.quantization import pack_bits, unpack_bits

if TYPE_CHECKING:
    import torch

#: Bytes that a tensor's type and number of dimensions count for.
HEADER = 8


@dataclass(frozen=True)
class Shape:
    """What is known of a cache without looking into it.

    ``layers``, ``heads``, ``length`` and ``dim`` count decoder layers, KV heads, tokens and
    channels of a head; ``cos`` and ``sin``, shape (length, rotary channels), are the model's
    rotary tables for these tokens, float32.
    """

    layers: int
    heads: int
    length: int
    dim: int
    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def numbers(self) -> int:
        """Numbers in the cache, keys and values."""
        return 2 * self.layers * self.heads * self.length * self.dim

    def budget(self, bits: float) -> int:
        """Bytes that a mean of ``bits`` per number allows."""
        return int(self.numbers * bits / 8)


@dataclass(frozen=True)
class Cache:
    """The cache of one context.

    Attributes
    ----------
    keys, values : Tensor, shape (layers, heads, length, dim)
        In the model's type. Keys are rotated by their positions (RoPE).
    shape : Shape
    """

    keys: torch.Tensor
    values: torch.Tensor
    shape: Shape


def stored_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes of named tensors: their data, their names, and eight a dimension and header."""
    return sum(
        t.numel() * t.element_size() + len(name.encode()) + HEADER * (1 + t.dim())
        for name, t in tensors.items()
    )


class Writer:
    """Collects numbers of different widths, to be read back in the same order."""

    #: What the streams of :meth:`tensors` count beside the numbers in them, at most.
    OVERHEAD = 3 * (2 * HEADER + len("codes"))

    def __init__(self) -> None:
        self._parts: dict[str, list[torch.Tensor]] = {"codes": [], "half": [], "index": []}

    def codes(self, codes: torch.Tensor, width: int) -> None:
        """Append whole numbers from 0 to ``2**width - 1``; they begin at a new byte."""
        self._parts["codes"].append(pack_bits(codes, width))

    def half(self, values: torch.Tensor) -> None:
        """Append numbers in 16 bits (float16)."""
        import torch

        most = torch.finfo(torch.float16).max
        self._parts["half"].append(values.float().clamp(-most, most).half().flatten())

    def index(self, values: torch.Tensor) -> None:
        """Append whole numbers from 0 to 32,767 in 16 bits."""
        import torch

        self._parts["index"].append(values.to(torch.int16).flatten())

    def tensors(self) -> dict[str, torch.Tensor]:
        """What was written."""
        import torch

        return {name: torch.cat(parts) for name, parts in self._parts.items() if parts}


class Reader:
    """Reads what a :class:`Writer` wrote, in the same order.

    Parameters
    ----------
    tensors : mapping of str to Tensor
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self._at = dict.fromkeys(("codes", "half", "index"), 0)

    def codes(self, width: int, *size: int) -> torch.Tensor:
        """Whole numbers of that width, uint8, in the given size."""
        import math

        count = math.prod(size)
        return unpack_bits(self._next("codes", -(-count * width // 8)), width, count).reshape(size)

    def half(self, *size: int) -> torch.Tensor:
        """16-bit numbers as float32."""
        import math

        return self._next("half", math.prod(size)).float().reshape(size)

    def index(self, *size: int) -> torch.Tensor:
        """Whole numbers as int64."""
        import math

        return self._next("index", math.prod(size)).long().reshape(size)

    def _next(self, name: str, count: int) -> torch.Tensor:
        first = self._at[name]
        self._at[name] = first + count
        if count == 0:
            import torch

            return torch.zeros(0)
        part = self._tensors[name][first : first + count]
        if part.shape[0] < count:
            raise ValueError(f"the stream {name!r} has ended: read in the order of writing")
        return part
