"""Distances against closed forms and naive double loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from galoop.diversity.distance import (
    column_distances,
    cosine_distances,
    mean_of_pairs,
    set_distances,
    unit,
    vendi,
)

tables = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)),
                elements=st.floats(-3, 3).map(lambda v: round(v, 3)))  # fmt: skip


def naive_distance(a: np.ndarray, b: np.ndarray) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return 1.0 - (sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0)


def test_cosine_distances_in_closed_form() -> None:
    angle = math.radians(60)
    rows = np.array([[1.0, 0.0], [0.0, 5.0], [-2.0, 0.0], [math.cos(angle), math.sin(angle)]])
    found = cosine_distances(rows)
    assert found[0] == pytest.approx([0.0, 1.0, 2.0, 0.5])
    assert found[1] == pytest.approx([1.0, 0.0, 1.0, 1 - math.sin(angle)])
    assert np.allclose(found, found.T)


@given(tables)
def test_cosine_distances_against_a_double_loop(rows: np.ndarray) -> None:
    found = cosine_distances(rows)
    for i in range(len(rows)):
        for j in range(len(rows)):
            expected = 0.0 if i == j else min(2.0, max(0.0, naive_distance(rows[i], rows[j])))
            assert found[i, j] == pytest.approx(expected, abs=1e-9)


@given(st.lists(tables.filter(lambda t: t.shape[1] >= 3).map(lambda t: t[:, :3]), min_size=1,
                max_size=4))  # fmt: skip
def test_set_distances_against_a_double_loop(sets: list[np.ndarray]) -> None:
    sets = [s[np.linalg.norm(s, axis=1) > 0] for s in sets]
    sets = [s for s in sets if len(s)]
    if not sets:
        return
    found = set_distances(sets)
    for i, one in enumerate(sets):
        for j, other in enumerate(sets):
            pairs = [
                naive_distance(a, b)
                for m, a in enumerate(one)
                for n, b in enumerate(other)
                if i != j or m != n
            ]
            expected = sum(pairs) / len(pairs) if pairs else 0.0
            assert found[i, j] == pytest.approx(max(0.0, expected), abs=1e-9)


def test_vendi_in_closed_form() -> None:
    assert vendi(np.ones((7, 3))) == pytest.approx(1.0)
    assert vendi(np.eye(6)) == pytest.approx(6.0)
    assert vendi(np.repeat(np.eye(3), 4, axis=0)) == pytest.approx(3.0)
    assert vendi(np.array([[2.0, 0.0]])) == pytest.approx(1.0)
    # Two vectors with cosine c: eigenvalues (1 ± c) / 2.
    c = 0.6
    shares = [(1 + c) / 2, (1 - c) / 2]
    expected = math.exp(-sum(p * math.log(p) for p in shares))
    assert vendi(np.array([[1.0, 0.0], [c, math.sqrt(1 - c * c)]])) == pytest.approx(expected)
    # Unequal groups: the exponential of the entropy of their sizes.
    sizes = np.array([5, 2, 1])
    rows = np.repeat(np.eye(3), sizes, axis=0)
    shares = list(sizes / 8)
    assert vendi(rows) == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)))


def test_unit_leaves_zeros() -> None:
    assert unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0.0, 0.0]]


def test_mean_of_pairs_skips_what_was_not_measured() -> None:
    rows = [[0.0, 0.2, None], [0.2, 9.0, 0.6], [None, 0.6, 0.0]]
    assert mean_of_pairs(rows) == pytest.approx(0.4), "neither the diagonal nor None"
    assert mean_of_pairs([[0.0]]) is None
    assert mean_of_pairs([[0.0, None], [None, 0.0]]) is None


def test_column_distances() -> None:
    table = [[0.5, 0.1, None], [0.0, 0.4, 0.2], [None, 0.3, 0.3]]
    found = column_distances(table)
    assert found[0][1] == found[1][0] == pytest.approx((0.4 + 0.4) / 2)
    assert found[0][2] == pytest.approx(0.2)
    assert found[1][2] == pytest.approx((0.2 + 0.0) / 2)
    assert [found[i][i] for i in range(3)] == [0.0, 0.0, 0.0]
    assert column_distances([[0.1, None], [None, 0.1]])[0][1] is None
    assert column_distances([]) == []
