"""What a codec really stores and gives back: checked and measured on the trusted side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from galoop.domains.text.decoding.packed import CompressedCache
from galoop.methods.codec import stored_bytes

if TYPE_CHECKING:
    import torch

    from galoop.domains.text.decoding.capture import Prefill

MAX_TENSORS = 4096
MAX_NAME = 64
_DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


class ContractError(Exception):
    """What came back breaks the artifact contract."""


def check_encoded(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse what is no plain set of tensors.

    Raises
    ------
    ContractError
    """
    if not tensors:
        raise ContractError("encode gave no tensors")
    if len(tensors) > MAX_TENSORS:
        raise ContractError(f"encode gave {len(tensors)} tensors; at most {MAX_TENSORS}")
    for name, tensor in tensors.items():
        if len(name) > MAX_NAME:
            raise ContractError(f"a tensor's name has {len(name)} characters; at most {MAX_NAME}")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise ContractError(f"tensor {name!r} is {dtype}; one of {', '.join(_DTYPES)}")


def measure(tensors: Mapping[str, torch.Tensor], captured: Prefill) -> dict[str, float]:
    """``bits`` per number of the cache, and ``cache_bytes``; everything that was stored counts."""
    stored = stored_bytes(tensors)
    numbers = captured.keys.numel() + captured.values.numel()
    return {"bits": 8 * stored / numbers, "cache_bytes": float(stored)}


def over_budget(measured: Mapping[str, float], budget: Mapping[str, float]) -> str:
    """Why a budget is not kept; empty when it is."""
    bits = budget.get("bits", 64.0)
    if measured["bits"] > bits + 1e-9:
        return (
            f"over budget: {measured['bits']:.3f} bits per number stored "
            f"({measured['cache_bytes']:.0f} bytes), {bits:g} allowed"
        )
    latency = measured.get("added_latency", 0.0)
    if "added_latency" in budget and latency > budget["added_latency"] + 1e-9:
        return (
            f"over budget: {latency:.2f} added latency relative to the prefill, "
            f"{budget['added_latency']:g} allowed"
        )
    return ""


def rebuild(tensors: Mapping[str, torch.Tensor], captured: Prefill) -> CompressedCache:
    """Check the restored tensors and make a cache of them.

    Parameters
    ----------
    tensors : mapping
        ``keys`` and ``values``, (layers, heads, length, dim), in the model's type.

    Raises
    ------
    ContractError
        What is wrong.
    """
    import torch

    if set(tensors) != {"keys", "values"}:
        raise ContractError("decode did not give keys and values")
    for name in ("keys", "values"):
        tensor, own = tensors[name], captured.keys
        if tensor.shape != own.shape:
            raise ContractError(
                f"decode gave {name} of shape {tuple(tensor.shape)}; expected {tuple(own.shape)}"
            )
        if tensor.dtype != own.dtype:
            raise ContractError(f"decode gave {name} as {tensor.dtype}; the cache is {own.dtype}")
        if not torch.isfinite(tensor).all():
            raise ContractError(f"decode gave {name} with NaN or infinite values")
    return CompressedCache(
        list(tensors["keys"]),
        list(tensors["values"]),
        [None] * captured.keys.shape[0],
        captured.length,
    )


def errors(cache: CompressedCache, captured: Prefill) -> dict[str, float]:
    """Root mean square error of keys and of values, relative to their own root mean square."""
    import torch

    found = {}
    for name, restored, own in (
        ("key_error", cache.keys, captured.keys),
        ("value_error", cache.values, captured.values),
    ):
        exact = own.float()
        off = torch.stack(restored).float() - exact
        found[name] = float(off.norm() / exact.norm().clamp_min(1e-30))
    return found
