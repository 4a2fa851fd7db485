"""The audit of a returned cache: what breaks the contract, and what a budget allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from kvpress.utils import compute_n_kept
from safetensors.torch import save

from galoop.domains.kv_compression.audit import (
    ContractError,
    Kept,
    allowed_entries,
    measure,
    over_budget,
    rebuild,
)
from galoop.domains.text.decoding.capture import Prefill, PrefillCache
from galoop.domains.text.decoding.tensors import SharedTensors, unpack, view

LAYERS, HEADS, LENGTH, DIM = 3, 2, 20, 4
Tensors = dict[str, torch.Tensor]


def prefill(length: int = LENGTH, dtype: torch.dtype = torch.float32) -> Prefill:
    keys = torch.zeros(LAYERS, HEADS, length, DIM, dtype=dtype)
    shared = SharedTensors({"keys": keys})
    hidden = torch.zeros(LAYERS, length, 8, dtype=dtype)
    return Prefill(list(range(length)), hidden, keys, keys.clone(), 1.0, shared)


def returned(kept: int = 10) -> Tensors:
    out = {}
    for i in range(LAYERS):
        out[f"keys.{i}"] = torch.randn(HEADS, kept, DIM)
        out[f"values.{i}"] = torch.randn(HEADS, kept, DIM)
    return out


def test_a_good_cache_is_taken_as_it_is() -> None:
    tensors = returned()
    tensors["masked.1"] = torch.zeros(HEADS, 10, dtype=torch.bool)
    cache = rebuild(tensors, prefill())
    assert cache.context_length == LENGTH
    for i in range(LAYERS):
        assert torch.equal(cache.keys[i], tensors[f"keys.{i}"])
        assert torch.equal(cache.values[i], tensors[f"values.{i}"])
    assert [m is None for m in cache.masked] == [True, False, True]


def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        tensors[name] = change(tensors[name])

    return apply


def add(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, tensor)


def poison(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def apply(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[-1, -1, -1] = value
        return tensor

    return apply


VIOLATIONS: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "a layer is missing": (lambda t: t.pop("keys.2"), "keys and values of all 3 layers"),
    "values are missing": (lambda t: t.pop("values.0"), "all 3 layers"),
    "nothing at all": (lambda t: t.clear(), "all 3 layers"),
    "a layer too many": (add("keys.3", torch.zeros(2, 10, 4)), "all 3 layers"),
    "a stranger": (add("note", torch.zeros(1)), "all 3 layers"),
    "a stranger's mask": (add("masked.9", torch.zeros(2, 10, dtype=torch.bool)), "all 3 layers"),
    "too few heads": (put("keys.1", lambda x: x[:1]), r"layer 1: keys have shape \(1, 10, 4\)"),
    "too many heads": (put("values.1", lambda x: x.repeat(2, 1, 1)), r"expected \(2, kept, 4\)"),
    "another dimension": (put("values.0", lambda x: x[..., :3]), "layer 0: values have shape"),
    "flat": (put("keys.0", lambda x: x.flatten()), "shape"),
    "a number": (put("keys.0", lambda x: x.sum()), "shape"),
    "too many axes": (put("keys.0", lambda x: x[None]), "shape"),
    "double": (put("keys.0", lambda x: x.double()), "layer 0: keys are torch.float64"),
    "half": (put("values.2", lambda x: x.half()), "layer 2: values are torch.float16"),
    "whole numbers": (put("values.2", lambda x: x.long()), "torch.int64"),
    "one NaN": (put("keys.1", poison(float("nan"))), "layer 1: keys hold NaN or infinite"),
    "one infinity": (put("values.2", poison(float("-inf"))), "layer 2: values hold NaN"),
    "more keys": (put("values.0", lambda x: x[:, :9]), "10 keys but 9 values"),
    "empty layer": (
        lambda t: t.update({"keys.1": torch.zeros(2, 0, 4), "values.1": torch.zeros(2, 0, 4)}),
        "layer 1: nothing is kept",
    ),
    "mask of numbers": (add("masked.0", torch.zeros(2, 10)), "layer 0: masked keys have the wrong"),
    "mask of another size": (add("masked.0", torch.zeros(2, 9, dtype=torch.bool)), "wrong shape"),
    "mask of one head": (add("masked.0", torch.zeros(10, dtype=torch.bool)), "wrong shape"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_has_its_reason(name: str) -> None:
    change, reason = VIOLATIONS[name]
    tensors = returned()
    change(tensors)
    with pytest.raises(ContractError, match=reason):
        rebuild(tensors, prefill())


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_or_read(data: bytes) -> None:
    reason = "not a tensor file"
    try:
        unpack(data)
    except ValueError as error:
        reason = str(error)
    assert reason.startswith("not a tensor file")


@given(st.data())
def test_damaged_files_are_refused_or_read(data: st.DataObject) -> None:
    good = bytearray(save({"keys.0": torch.ones(2, 3, 4), "masked.0": torch.ones(2, 3) > 0}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            tensors = unpack(damaged)
        except ValueError:
            continue
        with pytest.raises(ContractError):
            rebuild(tensors, prefill())


def test_masked_keys_count_as_dropped() -> None:
    tensors = returned(LENGTH)
    generator = torch.Generator().manual_seed(0)
    for i in range(LAYERS):
        tensors[f"masked.{i}"] = torch.rand(HEADS, LENGTH, generator=generator) < 0.6
    kept = measure(rebuild(tensors, prefill()), prefill())
    by_hand = [
        [sum(not bool(tensors[f"masked.{i}"][h, s]) for s in range(LENGTH)) for h in range(HEADS)]
        for i in range(LAYERS)
    ]
    assert kept.per_head == by_hand
    assert kept.total == sum(map(sum, by_hand))
    assert kept.full == LAYERS * HEADS * LENGTH
    assert kept.bytes == kept.total * DIM * 2 * 4
    assert kept.fraction == kept.total / 120


def test_layers_may_keep_different_numbers() -> None:
    tensors = returned()
    tensors["keys.1"], tensors["values.1"] = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    assert measure(rebuild(tensors, prefill()), prefill()).per_head == [[10, 10], [3, 3], [10, 10]]


@example(length=500, percent=29, shape=(30, 3))
@example(length=250, percent=29, shape=(3, 2))
@given(
    length=st.integers(1, 4000),
    percent=st.integers(0, 99),
    shape=st.sampled_from([(1, 1), (3, 2), (30, 3)]),
)
def test_what_kvpress_keeps_is_within_the_budget(
    length: int, percent: int, shape: tuple[int, int]
) -> None:
    """The roundings of kvpress: per head, together over a layer, together over all layers."""
    ratio = percent / 100
    layers, heads = shape
    full = layers * heads * length
    allowed = allowed_entries((layers, heads, length), ratio)
    assert layers * heads * compute_n_kept(length, ratio) <= allowed
    assert full - int(full * ratio) <= allowed  # KVzip: all heads and layers together
    # One entry a layer: the rounding, or what a ratio lacks in binary, whichever comes.
    assert layers * (heads * length - int(heads * length * ratio)) <= allowed + layers
    exact = full * (1 - ratio)
    assert allowed <= max(exact + 1 + 1e-6, layers * heads)  # and no more than a rounding


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("length", [1, 3, 57, 270, 1327])
def test_one_entry_more_is_over(length: int, ratio: float) -> None:
    allowed = allowed_entries((LAYERS, HEADS, length), ratio)
    full = LAYERS * HEADS * length
    for total, fine in ((allowed, True), (allowed + 1, False)):
        kept = Kept([[total]], total, full, 0)
        reason = over_budget(
            kept,
            prefill(length),
            {"compression_ratio": ratio},
            extra_forward_passes=9,
            added_latency=9,
        )
        assert (reason == "") is fine
        assert fine or f"{total} of {full} KV entries kept" in reason
        assert fine or f"{allowed} allowed" in reason


def test_nothing_kept_is_no_way_to_keep_a_budget() -> None:
    kept = Kept([[0]], 0, 120, 0)
    reason = over_budget(
        kept, prefill(), {"compression_ratio": 0.5}, extra_forward_passes=0, added_latency=0
    )
    assert "nothing is kept" in reason


@pytest.mark.parametrize("key", ["extra_forward_passes", "added_latency"])
def test_passes_and_latency_bind_where_named(key: str) -> None:
    kept = Kept([[60]], 60, 120, 0)
    used = {"extra_forward_passes": 0.0, "added_latency": 0.0, key: 2.0}
    for budget, fine in (({}, True), ({key: 2.0}, True), ({key: 1.9}, False)):
        reason = over_budget(kept, prefill(), {"compression_ratio": 0.5, **budget}, **used)
        assert (reason == "") is fine
        assert fine or ("2.00" in reason and "1.9 allowed" in reason)


# -- prefills -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shared_tensors_come_back_equal_and_aligned(dtype: torch.dtype) -> None:
    given_ = {"a": torch.randn(3, 5, 7).to(dtype), "b": torch.randn(2, 3).to(dtype)[:, ::2]}
    shared = SharedTensors(given_)
    seen = view(shared.fd, shared.layout)
    for name, tensor in given_.items():
        assert torch.equal(seen[name], tensor)
        assert seen[name].data_ptr() % 64 == 0


def test_writing_to_a_view_changes_nobody_elses() -> None:
    shared = SharedTensors({"a": torch.ones(100)})
    mine, yours = (view(shared.fd, shared.layout)["a"] for _ in range(2))
    mine.zero_()
    assert torch.equal(yours, torch.ones(100))
    assert torch.equal(view(shared.fd, shared.layout)["a"], torch.ones(100))


def test_prefills_are_computed_once_and_bounded() -> None:
    made: list[int] = []

    def compute(ids: list[int]) -> Prefill:
        made.append(ids[0])
        return prefill()

    cache = PrefillCache(3 * prefill().nbytes)
    for first in (0, 1, 2, 0, 3, 0, 1):
        cache.get([first], compute)
    assert made == [0, 1, 2, 3, 1]  # 1 was the least recently used when 3 came
