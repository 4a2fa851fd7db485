"""Tensors between the trusted process and a candidate, as safetensors in anonymous files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except (SafetensorError, KeyError, OverflowError, RuntimeError, TypeError) as error:
        raise ValueError(f"not a tensor file: {error}") from None
