"""The parts of quantized caches, against naive numpy, closed forms and the libraries' own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from galoop.methods.codec import Cache, Reader, Shape, Writer, stored_bytes
from galoop.methods.kivi import Kivi
from galoop.methods.quantization import (
    WIDTHS,
    Grid,
    apply_rope,
    dequantise,
    hadamard,
    join_channels,
    join_tokens,
    pack_bits,
    quantise,
    remove_rope,
    split_channels,
    split_tokens,
    unpack_bits,
)


def naive_bits(codes: list[int], width: int) -> bytes:
    """Lowest bits first, by hand."""
    text = "".join(format(code, f"0{width}b")[::-1] for code in codes)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 101])
def test_packing_takes_the_bits_it_says(width: int, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    codes = torch.randint(0, 2**width, (count,), generator=generator, dtype=torch.uint8)
    codes[0] = 2**width - 1
    packed = pack_bits(codes, width)
    assert bytes(packed.tolist()) == naive_bits(codes.tolist(), width)
    assert packed.shape[0] == -(-count * width // 8)
    assert torch.equal(unpack_bits(packed, width, count), codes)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 20), st.integers(1, 33))
def test_groups_come_back_where_they_were(heads: int, tokens: int, dim: int, size: int) -> None:
    x = torch.arange(heads * tokens * dim).float().reshape(heads, tokens, dim)
    by_channel, by_token = split_channels(x, size), split_tokens(x, size)
    assert torch.equal(join_channels(by_channel, heads, tokens, dim), x)
    assert torch.equal(join_tokens(by_token, heads, tokens, dim), x)
    assert by_channel.shape[1] <= size
    assert by_channel.numel() < heads * dim * (tokens + by_channel.shape[1])
    # A group is of one channel: consecutive numbers of it lie ``dim`` apart, or repeat at the end.
    assert set((by_channel[:, 1:] - by_channel[:, :-1]).unique().tolist()) <= {0.0, float(dim)}


def naive_round(x: np.ndarray, width: int) -> np.ndarray:
    """Round to nearest between minimum and maximum, both kept in 16 bits; one group."""
    low = np.float16(x.min()).astype(np.float32)
    span = np.float16(x.max() - low).astype(np.float32)
    if span <= 0:
        return np.full_like(x, low)
    at = np.clip((x - low) / span, 0, 1)
    return low + span * np.round(at * (2**width - 1)) / (2**width - 1)


def naive_kivi(cache: Cache, width: int, residual: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Loops over layers, heads, channels or tokens, and groups."""
    keys, values = cache.keys.float().numpy().copy(), cache.values.float().numpy().copy()
    layers, heads, length, dim = keys.shape
    rest = length - residual

    def cut(n: int) -> list[slice]:
        count = -(-n // size)
        step = -(-n // count)
        return [slice(i, min(n, i + step)) for i in range(0, n, step)]

    for layer in range(layers):
        for head in range(heads):
            for channel in range(dim):
                for part in cut(rest):
                    row = keys[layer, head, :rest, channel]
                    row[part] = naive_round(row[part], width)
            for token in range(rest):
                for part in cut(dim):
                    row = values[layer, head, token]
                    row[part] = naive_round(row[part], width)
    for x in (keys, values):
        x[:, :, rest:] = x[:, :, rest:].astype(np.float16)
    return keys, values


def cache(
    layers: int = 2, heads: int = 2, length: int = 100, dim: int = 32, seed: int = 0
) -> Cache:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(layers, heads, length, dim, generator=generator)
    keys[..., 3] += 8  # a channel that stands out, as keys have them
    values = torch.randn(layers, heads, length, dim, generator=generator)
    angles = torch.outer(
        torch.arange(length).float(), 10_000.0 ** -(torch.arange(dim // 2) * 2 / dim)
    )
    angles = torch.cat([angles, angles], dim=1)
    return Cache(keys, values, Shape(layers, heads, length, dim, angles.cos(), angles.sin()))


@pytest.mark.parametrize("bits", [2.1, 2.75, 3.75, 5.0, 8.8])
@pytest.mark.parametrize("length", [1, 31, 64, 100])
def test_kivi_is_the_naive_one_and_fills_its_budget(bits: float, length: int) -> None:
    given_ = cache(length=length)
    codec = Kivi(bits, group=32)
    width, residual = codec.plan(given_.shape)
    encoded = codec.encode(given_)
    stored = 8 * stored_bytes(encoded) / given_.shape.numbers
    if length > 1 and bits > 2.2:  # one token pays for no range, nor does a tenth of a bit
        assert stored <= bits
    if length >= 64:  # a group of 32 takes one bit a number for its range
        assert width == {2.1: 1, 2.75: 1, 3.75: 2, 5.0: 3, 8.8: 7}[bits]
    if residual < length and stored <= bits:
        assert codec.bytes(given_.shape, width, residual + 1) > given_.shape.budget(bits)
    keys, values = Kivi(bits, group=32).decode(encoded, given_.shape)
    expected = naive_kivi(given_, width, residual, 32)
    np.testing.assert_allclose(keys.numpy(), expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(values.numpy(), expected[1], rtol=0, atol=1e-5)


def test_channels_that_stand_out_are_why_keys_go_by_channel() -> None:
    """The paper's point, on made-up keys: the same width errs less by channel."""
    given_ = cache(length=256)
    errors = []
    for by_channel in (True, False):
        codec = Kivi(2.75, keys_by_channel=by_channel, group=32)
        keys, _ = codec.decode(codec.encode(given_), given_.shape)
        errors.append(float((keys - given_.keys).norm()))
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize(
    "grid",
    [
        Grid(2), Grid(3, symmetric=True), Grid(4, levels="normal"), Grid(3, shrink=0.0),
        Grid(2, symmetric=True, levels="normal", keep_norm=True), Grid(1), Grid(8, shrink=0.9),
    ],
)  # fmt: skip
def test_rounding_takes_the_nearest_level(grid: Grid) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(50, 24, generator=generator) + 0.3
    groups = quantise(x, grid)
    found = dequantise(groups, grid)
    if grid.keep_norm:
        torch.testing.assert_close(found.norm(dim=1), x.norm(dim=1), rtol=2e-3, atol=0)
        return
    levels = groups.low + groups.span * grid.places()
    nearest = (x[..., None] - levels[:, None]).abs().amin(dim=-1)
    torch.testing.assert_close((x - found).abs(), nearest, rtol=0, atol=1e-5)
    if grid.symmetric:
        torch.testing.assert_close(levels, -levels.flip(1))


def test_looking_for_a_clip_never_errs_more_than_any_of_them() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(40, 64, generator=generator) ** 3
    best = (dequantise(quantise(x, Grid(2, shrink=0.0)), Grid(2)) - x).square().sum(dim=1)
    for shrink in (1.0, 0.9, 0.8, 0.6):
        error = (dequantise(quantise(x, Grid(2, shrink=shrink)), Grid(2)) - x).square().sum(dim=1)
        assert bool((best <= error + 1e-4).all())


def test_constant_groups_and_extremes_survive() -> None:
    x = torch.stack([torch.full((8,), 2.5), torch.zeros(8), torch.linspace(-6e4, 6e4, 8)])
    for grid in (Grid(2), Grid(8), Grid(2, symmetric=True), Grid(3, shrink=0.0)):
        found = dequantise(quantise(x, grid), grid)
        assert bool(torch.isfinite(found).all())
        if not grid.symmetric:
            torch.testing.assert_close(found[:2], x[:2])


@pytest.mark.parametrize("length", [1, 8, 12, 64, 96])
def test_hadamard_is_the_matrix_and_its_own_inverse(length: int) -> None:
    from scipy.linalg import block_diag
    from scipy.linalg import hadamard as matrix

    size = length & -length
    whole = block_diag(*[matrix(size) / np.sqrt(size)] * (length // size))
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(hadamard(x).numpy(), x.numpy() @ whole, atol=1e-5)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=0, atol=1e-5)


def test_rope_is_transformers_own_and_is_undone() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    given_ = cache(length=40)
    cos, sin = given_.shape.cos, given_.shape.sin
    rotated = apply_rope(given_.keys[0], cos, sin)
    _, expected = apply_rotary_pos_emb(given_.keys[:1], given_.keys[:1], cos[None], sin[None])
    torch.testing.assert_close(rotated, expected[0])
    torch.testing.assert_close(remove_rope(rotated, cos, sin), given_.keys[0], rtol=0, atol=1e-5)
    scaled = apply_rope(given_.keys[0], 1.2 * cos, 1.2 * sin)  # as YaRN's tables
    back = remove_rope(scaled, 1.2 * cos, 1.2 * sin)
    torch.testing.assert_close(back, given_.keys[0], rtol=0, atol=1e-5)
    part = remove_rope(rotated, cos[:, :16], sin[:, :16])  # the other channels are not rotated
    assert torch.equal(part[..., 16:], rotated[..., 16:])


def test_streams_are_counted_and_read_in_order() -> None:
    out = Writer()
    out.codes(torch.tensor([1, 2, 3]), 3)
    out.half(torch.tensor([0.5, 1e9]))
    out.index(torch.tensor([7, 40]))
    out.codes(torch.tensor([255]), 8)
    tensors = out.tensors()
    assert stored_bytes(tensors) == (2 + 1) + 2 * 2 + 2 * 2 + len("codeshalfindex") + 3 * 16
    read = Reader(tensors)
    assert read.codes(3, 3).tolist() == [1, 2, 3]
    assert read.half(2).tolist() == [0.5, 65504.0]
    assert read.index(2).tolist() == [7, 40]
    assert read.codes(8, 1).tolist() == [255]
    with pytest.raises(ValueError, match="has ended"):
        read.half(1)
