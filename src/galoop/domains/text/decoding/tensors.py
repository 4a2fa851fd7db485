"""Tensors between the trusted process and a candidate, in anonymous files.

Towards the candidate: one sealed file a prefill, mapped by both sides, so that nothing is copied
however many artifacts read it. Back from the candidate: safetensors bytes, which are parsed and
checked as what they are, somebody else's.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: torch aligns its own tensors to this; results of matrix products may depend on it.
_ALIGNMENT = 64

#: Name, dtype, shape and offset in bytes of each tensor; JSON-compatible.
Layout = list[tuple[str, str, list[int], int]]


class SharedTensors:
    """Named tensors in a sealed anonymous file.

    Parameters
    ----------
    tensors : mapping of str to Tensor

    Attributes
    ----------
    fd : int
        Closed when the object goes.
    layout : list
        What :func:`view` needs.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        import torch

        from galoop.isolation import memfd_from_bytes

        self.layout: Layout = []
        size = 0
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.layout.append((name, dtype, list(tensor.shape), size))
            nbytes = tensor.numel() * tensor.element_size()
            size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        data = torch.zeros(size, dtype=torch.uint8)
        for (_, _, _, offset), tensor in zip(self.layout, tensors.values(), strict=True):
            raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            data[offset : offset + raw.numel()] = raw
        self.fd = memfd_from_bytes(data.numpy().data, "prefill")
        weakref.finalize(self, os.close, self.fd)


def view(fd: int, layout: Sequence[Sequence[Any]]) -> dict[str, torch.Tensor]:
    """The tensors of a :class:`SharedTensors` file, mapped; writing to them changes only a copy."""
    import math

    import torch

    from galoop.isolation import map_input

    mapped = map_input(fd)
    out = {}
    for name, dtype, shape, offset in layout:
        flat = torch.frombuffer(
            mapped, dtype=getattr(torch, dtype), count=math.prod(shape), offset=offset
        )
        out[name] = flat.reshape(shape)
    return out


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Safetensors bytes of named tensors."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def unpack(data: bytes) -> dict[str, torch.Tensor]:
    """Named tensors of safetensors bytes.

    Raises
    ------
    ValueError
        When the bytes are not safetensors (a candidate may write anything).
    """
    from safetensors.torch import load

    try:
        return load(data)
    except Exception as error:  # noqa: BLE001 - whatever a parser makes of foreign bytes
        raise ValueError(f"not a tensor file: {type(error).__name__}: {error}"[:300]) from None
