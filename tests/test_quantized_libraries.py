"""The wrapped quantizers give what transformers' own quantized cache gives (extra quantized)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from galoop.domains.quantized_kv.artifacts import materialise
from galoop.methods.codec import Cache, stored_bytes
from test_codec_grammar import load
from test_quantization import cache


def given_cache(dtype: torch.dtype) -> Cache:
    made = cache(layers=2, length=128, dim=64)
    return Cache(made.keys.to(dtype), made.values.to(dtype), made.shape)


def restored(name: str, bits: float, given: Cache) -> tuple[torch.Tensor, torch.Tensor, float]:
    candidate = materialise(name, {"bits": bits})
    encoded = load(candidate, bits).encode(given)
    keys, values = load(candidate, bits).decode(encoded, given.shape)
    return keys, values, 8 * stored_bytes(encoded) / given.shape.numbers


def transformers_own(layer: Any, given: Cache) -> list[torch.Tensor]:
    """Keys and values after transformers' layer has quantized and restored them."""
    found = []
    for x, axis in ((given.keys, layer.axis_key), (given.values, layer.axis_value)):
        parts = []
        for i in range(x.shape[0]):
            layer.lazy_initialization(x[i : i + 1], x[i : i + 1])
            made = layer._quantize(x[i : i + 1].contiguous(), axis)
            if hasattr(made, "_data") and hasattr(made._data, "_data"):
                # quanto compiles a C++ extension to unpack; by hand, low bits first.
                packed, bits = made._data, made._data._bits
                parts_of = [(packed._data >> (bits * k)) & (2**bits - 1) for k in range(8 // bits)]
                made._data = torch.cat(parts_of)[: packed.shape[0]]
            parts.append(layer._dequantize(made)[0])
        found.append(torch.stack(parts))
    return found


@pytest.mark.parametrize(("width", "bits"), [(8, 8.75), (4, 4.75), (3, 3.75), (2, 2.75), (1, 1.75)])
def test_hqq(width: int, bits: float) -> None:
    pytest.importorskip("hqq")
    from transformers.cache_utils import HQQQuantizedLayer

    given = given_cache(torch.bfloat16)
    keys, values, stored = restored("hqq", bits, given)
    assert width + 0.5 < stored <= bits
    layer = HQQQuantizedLayer(nbits=width, axis_key=1, axis_value=1, q_group_size=64)
    if width == 3:  # transformers hands it four dimensions, for which its unpacking of 3 bits fails
        layer = HQQQuantizedLayer(nbits=8, axis_key=1, axis_value=1, q_group_size=64)
        expected = transformers_own(layer, given)
        off = [float((a - b).float().norm()) for a, b in zip((keys, values), expected, strict=True)]
        assert max(off) / float(given.keys.float().norm()) < 0.3
        return
    for found, own in zip((keys, values), transformers_own(layer, given), strict=True):
        assert torch.equal(found, own)


@pytest.mark.parametrize(("width", "bits"), [(4, 4.75), (2, 2.75)])
def test_quanto(width: int, bits: float) -> None:
    pytest.importorskip("optimum.quanto")
    from transformers.cache_utils import QuantoQuantizedLayer

    given = given_cache(torch.bfloat16)
    keys, values, stored = restored("quanto", bits, given)
    assert width + 0.5 < stored <= bits
    layer = QuantoQuantizedLayer(nbits=width, axis_key=0, axis_value=0, q_group_size=64)
    for found, own in zip((keys, values), transformers_own(layer, given), strict=True):
        assert torch.equal(found, own)


@pytest.mark.parametrize("name", ["hqq", "quanto"])
def test_in_float32_scales_take_16_bits(name: str) -> None:
    pytest.importorskip({"quanto": "optimum.quanto"}.get(name, name))
    given = given_cache(torch.float32)
    keys, values, stored = restored(name, 4.75, given)
    assert stored <= 4.75
    assert float((keys - given.keys).norm() / given.keys.norm()) < 0.15
    assert float((values - given.values).norm() / given.values.norm()) < 0.15
