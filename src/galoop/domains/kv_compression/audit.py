"""What an artifact's cache really is: checked and measured on the trusted side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.domains.text.decoding.capture import Prefill
from galoop.domains.text.decoding.decode import CompressedCache

if TYPE_CHECKING:
    import torch


class ContractError(Exception):
    """The cache that came back breaks the artifact contract."""


@dataclass(frozen=True)
class Kept:
    """Measured size of a compressed cache.

    Attributes
    ----------
    per_head : list of list of int, (layers, H_kv)
        Entries that can be attended: stored and not masked.
    total : int
        Their sum.
    full : int
        Entries of the uncompressed cache.
    bytes : int
        Bytes of the attended keys and values.
    """

    per_head: list[list[int]]
    total: int
    full: int
    bytes: int

    @property
    def fraction(self) -> float:
        """Kept entries over all entries."""
        return self.total / self.full


def rebuild(tensors: Mapping[str, torch.Tensor], prefill: Prefill) -> CompressedCache:
    """Check the tensors that a candidate returned and make a cache of them.

    Parameters
    ----------
    tensors : mapping
        ``keys.i``, ``values.i`` of shape (H_kv, kept_i, head_dim) for every layer i, and
        optionally ``masked.i``, bool, of shape (H_kv, kept_i).

    Raises
    ------
    ContractError
        What is wrong, in which layer.
    """
    import torch

    layers, heads, length, dim = prefill.keys.shape
    expected = {f"{kind}.{i}" for kind in ("keys", "values") for i in range(layers)}
    extra = set(tensors) - expected - {f"masked.{i}" for i in range(layers)}
    if expected - set(tensors) or extra:
        raise ContractError(f"the cache does not have keys and values of all {layers} layers")
    cache = CompressedCache([], [], [], context_length=length)
    for i in range(layers):
        keys, values = tensors[f"keys.{i}"], tensors[f"values.{i}"]
        for name, tensor in (("keys", keys), ("values", values)):
            if tensor.dim() != 3 or tensor.shape[0] != heads or tensor.shape[2] != dim:
                raise ContractError(
                    f"layer {i}: {name} have shape {tuple(tensor.shape)}; "
                    f"expected ({heads}, kept, {dim})"
                )
            if tensor.dtype != prefill.keys.dtype:
                raise ContractError(
                    f"layer {i}: {name} are {tensor.dtype}, the cache is {prefill.keys.dtype}"
                )
            if not torch.isfinite(tensor).all():
                raise ContractError(f"layer {i}: {name} hold NaN or infinite values")
        if keys.shape != values.shape:
            raise ContractError(
                f"layer {i}: {keys.shape[1]} keys but {values.shape[1]} values are kept"
            )
        if keys.shape[1] == 0:
            raise ContractError(f"layer {i}: nothing is kept; keep at least one entry")
        masked = tensors.get(f"masked.{i}")
        if masked is not None and (masked.dtype != torch.bool or masked.shape != keys.shape[:2]):
            raise ContractError(f"layer {i}: masked keys have the wrong shape or type")
        cache.keys.append(keys)
        cache.values.append(values)
        cache.masked.append(masked)
    return cache


def measure(cache: CompressedCache, prefill: Prefill) -> Kept:
    """Count what can be attended; masked keys count as dropped."""
    layers, heads, length, dim = prefill.keys.shape
    per_head = []
    for keys, masked in zip(cache.keys, cache.masked, strict=True):
        if masked is None:
            per_head.append([keys.shape[1]] * heads)
        else:
            per_head.append((~masked).sum(dim=1).tolist())
    total = sum(map(sum, per_head))
    return Kept(
        per_head=per_head,
        total=total,
        full=layers * heads * length,
        bytes=total * dim * 2 * prefill.keys.element_size(),
    )


def allowed_entries(prefill_shape: tuple[int, int, int], compression_ratio: float) -> int:
    """Most entries that a budget allows for a cache of (layers, H_kv, S) entries.

    kvpress keeps ``max(1, int(S * (1 - r)))`` entries of each head, or, in its head-wise presses,
    all but ``int(n * r)`` of the n entries together; either is within the budget.
    """
    layers, heads, length = prefill_shape
    full = layers * heads * length
    by_head = layers * heads * max(1, int(length * (1 - compression_ratio)))
    # As kvpress computes it: 1500 * 0.29 is a little less than 435 in binary.
    together = full - int(full * compression_ratio)
    return max(by_head, together, math.ceil(full * (1 - compression_ratio) - 1e-9))


def too_many(kept: int, full: int, allowed: int, ratio: float) -> str:
    """The words for a cache that keeps too much."""
    return (
        f"over budget: {kept} of {full} KV entries kept ({kept / full:.1%}), "
        f"{allowed} allowed ({1 - ratio:.1%})"
    )


def over_budget(
    kept: Kept,
    prefill: Prefill,
    budget: Mapping[str, float],
    *,
    extra_forward_passes: float,
    added_latency: float,
) -> str:
    """Why the cache is over its budget; empty when it keeps it.

    ``extra_forward_passes`` and ``added_latency`` are relative to the prefill and only bind where
    the budget names them.
    """
    layers, heads, length, _ = prefill.keys.shape
    ratio = budget.get("compression_ratio", 0.0)
    allowed = allowed_entries((layers, heads, length), ratio)
    if kept.total > allowed:
        return too_many(kept.total, kept.full, allowed, ratio)
    if kept.total == 0:
        return "nothing is kept; keep at least one entry"
    limits = (
        ("extra_forward_passes", extra_forward_passes, "extra forward passes"),
        ("added_latency", added_latency, "added latency relative to the prefill"),
    )
    for key, measured, words in limits:
        if key in budget and measured > budget[key] + 1e-9:
            return f"over budget: {measured:.2f} {words}, {budget[key]:g} allowed"
    return ""
