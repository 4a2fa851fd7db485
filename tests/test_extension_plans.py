"""Plans as data: what is refused, what is measured, the named methods, the layouts, the grammar."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galoop.domains.context_extension import layouts, wire
from galoop.domains.context_extension.artifact_spec import RULES, parse_spec
from galoop.domains.context_extension.artifacts import list_artifacts, materialise
from galoop.domains.context_extension.checks import PlanError, check, check_reach, measure
from galoop.errors import ArtifactError, UnknownNameError
from galoop.methods.dca import DualChunk
from galoop.methods.positions import Band, Plan, identity_plan
from galoop.methods.rope_scaling import NTK, Interpolation, YaRN
from galoop.methods.self_extend import SelfExtend
from galoop.types import Example
from plan_tools import BUDGET, SHAPE, W, built, distances


def good(length: int = 20) -> dict[str, Any]:
    i = np.arange(length)
    return {"start": np.maximum(i - 4, 0), "query": i, "key": i}


def two(length: int = 20, **changes: Any) -> Plan:
    i = np.arange(length)
    return Plan([Band(**good(length)), Band(**{"start": i * 0, "query": i, "key": i, **changes})])


# -- checks --------------------------------------------------------------------------------


def with_one(value: float, at: int = 9, length: int = 20) -> Any:
    array = np.arange(length, dtype=float)
    array[at] = value
    return array


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan([Band(np.arange(20) + 2, np.arange(20), np.arange(20))]), "later than its query"),
        (Plan([Band(np.arange(20) - 1, np.arange(20), np.arange(20))]), "below 0"),
        (two(start=np.arange(20)), "an earlier band has"),
        (two(start=np.full(20, 0.5)), "no places of keys"),
        (two(start=np.full(20, 1e300)), "no places of keys"),
        (two(start=with_one(np.nan)), "not finite"),
        (two(query=with_one(np.nan)), "not finite"),
        (two(key=with_one(np.inf)), "not finite"),
        (two(key=with_one(500.0)), "greater than its query's"),
        (two(query=with_one(500.0)), "above 128"),
        (two(key=with_one(-1e9)), "above 128"),
        (two(frequency=np.array([1, 1, np.nan, 1])), "not finite"),
        (two(frequency=np.array([1, 1, -0.1, 1])), "frequency factors"),
        (two(frequency=np.array([1, 1, 4.1, 1])), "frequency factors"),
        (Plan([Band(**good())], scale=np.zeros(20)), "scale is not within"),
        (Plan([Band(**good())], scale=with_one(np.inf)), "not finite"),
        (Plan([Band(**good())], scale=np.full(20, 17.0)), "scale is not within"),
        (Plan([Band(**good(), drop=True)]), "no key at all"),
        (Plan([Band(np.arange(20) + 1, np.arange(20), np.arange(20))]), "no key at all"),
    ],
)
def test_a_bad_plan_is_refused_with_its_reason(plan: Plan, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        check(plan, SHAPE, 20)


def test_what_is_measured_of_a_window_in_closed_form() -> None:
    n, width = 100, 10
    _plan, facts = check(Plan(layouts.window(n, width)), SHAPE, n)
    pairs = width * n - width * (width - 1) / 2
    assert facts.attended == pytest.approx(pairs / (n * (n + 1) / 2))
    assert facts.farthest == width - 1
    both = measure([facts, check(identity_plan(n), SHAPE, n)[1]])
    assert both["attended_least_per_head"] == pytest.approx(facts.attended)
    assert both["attended_fraction"] == pytest.approx((facts.attended + 1) / 2)
    assert both["largest_distance"] == n - 1


def test_range_checks_agree_with_every_pair_looked_at() -> None:
    """Random bands with random positions: accepted exactly when all pairs are in range."""
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(150):
        n = int(rng.integers(3, 40))
        first = np.minimum(rng.integers(0, n, n), np.arange(n))
        second = np.minimum(rng.integers(0, n, n), first)
        scale = rng.choice([1.0, 4.0, 12.0])
        bands = [
            Band(s, np.arange(n) + rng.integers(0, 8) * rng.random(n), np.arange(n) * rng.random())
            for s in (first, second)
        ]
        bands[1] = Band(second, bands[1].query * scale, bands[1].key, drop=bool(rng.random() < 0.2))
        plan = Plan(bands)
        pairs = distances(plan, n)
        gaps = [gap for gap, *_ in pairs.values()]
        every = {i for i, _ in pairs} == set(range(n))
        fine = every and min(gaps) >= 0 and max(gaps) <= 4 * W
        outcomes.add(fine)
        try:
            facts = check(plan, SHAPE, n)[1]
        except PlanError:
            assert not fine
        else:
            assert fine
            assert facts.farthest == pytest.approx(max(gaps))
            assert facts.attended == pytest.approx(len(pairs) / (n * (n + 1) / 2))
    assert outcomes == {True, False}


def test_every_token_has_to_stay_within_reach_of_a_head() -> None:
    n = 30
    whole, near = identity_plan(n), check(Plan(layouts.window(n, 6)), SHAPE, n)[0]
    far = Plan(
        [
            Band(np.maximum(np.arange(n) - 5, 0), np.arange(n), np.arange(n), drop=True),
            Band(np.zeros(n, int), np.full(n, 20), np.zeros(n)),
        ]
    )
    check_reach([[near, whole]] * 2, n)
    check_reach([[near, far, near]], n)  # each leaves out what the other has
    with pytest.raises(PlanError, match="layer 1: no head attends from query 6 to key 0"):
        check_reach([[whole, near], [near, near]], n)
    with pytest.raises(PlanError, match="layer 0: no head attends from query 0 to key 0"):
        check_reach([[far, far]], n)
    hole = Plan(layouts.with_sinks([*layouts.window(n, 6), *layouts.dropped(n)], 3, 20))
    with pytest.raises(PlanError, match="from query 9 to key 3"):
        check_reach([[hole]], n)


# -- between processes ---------------------------------------------------------------------


def test_plans_come_through_as_they_were_sent() -> None:
    one = two(frequency=np.array([1, 0.5, 0.25, 0.1]))
    other = Plan([Band(**good(), drop=False)], scale=np.linspace(1, 2, 20))
    rows = [[one, one, other, one], [other] * 4]
    about, data = wire.pack(rows, 4, 20)
    again = wire.unpack(about, data, 2, 4, 4, 20)
    assert len({id(plan) for row in again for plan in row}) == 2
    for mine, theirs in zip(itertools.chain(*rows), itertools.chain(*again), strict=True):
        assert distances(mine, 20) == distances(theirs, 20)
        assert (mine.scale is None) == (theirs.scale is None)
        assert theirs.scale is None or (theirs.scale == mine.scale).all()


@pytest.mark.parametrize(
    "forge",
    [
        lambda about, data: (about, data + b"\0"),
        lambda about, data: (about, data + bytes(8)),
        lambda about, data: (about, data[:-8]),
        lambda about, data: ({**about, "plans": []}, data),
        lambda about, data: ({**about, "plans": about["plans"] * 65}, data),
        lambda about, data: ({**about, "plans": [{"bands": []}]}, data),
        lambda about, data: ({**about, "plans": [{"bands": [3]}]}, data),
        lambda about, data: ({**about, "plans": 3}, data),
        lambda about, data: ({**about, "use": [[0, 0, 0, 1], [0] * 4]}, data),
        lambda about, data: ({**about, "use": [[0, 0, 0, -1], [0] * 4]}, data),
        lambda about, data: ({**about, "use": [[0, 0, 0, 0.0], [0] * 4]}, data),
        lambda about, data: ({**about, "use": [[0] * 4]}, data),
        lambda about, data: ({**about, "use": [[0] * 3, [0] * 4]}, data),
        lambda about, data: ({}, data),
    ],
)
def test_forged_replies_are_refused(forge: Callable[..., Any]) -> None:
    about, data = wire.pack([[two()] * 4] * 2, 4, 20)
    with pytest.raises(PlanError):
        wire.unpack(*forge(about, data), 2, 4, 4, 20)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([[Plan([Band(**good())] * 9)] * 4] * 2, "9 bands"),
        ([[Plan([])] * 4] * 2, "0 bands"),
        ([[Plan([Band(**good(19))])] * 4] * 2, r"shape \(19,\)"),
        ([[two(frequency=np.ones(5))] * 4] * 2, r"shape \(5,\)"),
        ([[two(key=np.ones((20, 2)))] * 4] * 2, r"shape \(20, 2\)"),
        ([[two() for _ in range(65)]], "65 different plans"),
    ],
)
def test_what_cannot_be_sent(rows: Any, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        wire.pack(rows, 4, 20)


# -- artifacts -----------------------------------------------------------------------------

METHODS = {
    "dca": DualChunk(),
    "self-extend": SelfExtend(),
    "interpolation": Interpolation(),
    "ntk": NTK(),
    "yarn": YaRN(),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_named_artifact_lays_out_what_its_method_does(name: str) -> None:
    rows = built(materialise(name, BUDGET), 4 * W)
    assert len({id(plan) for row in rows for plan in row}) == 1
    expected = METHODS[name].plan(SHAPE, 4 * W)
    assert distances(rows[0][0], 4 * W) == distances(expected, 4 * W)
    check(rows[0][0], SHAPE, 4 * W)


def test_identity_has_its_own_budget_and_unextended_the_one_asked_for() -> None:
    assert parse_spec(materialise("identity", BUDGET).files).budget == {"extension": 1.0}
    assert parse_spec(materialise("unextended", BUDGET).files).budget == BUDGET
    for name in ("identity", "unextended"):
        pairs = distances(built(materialise(name, BUDGET), 50)[0][0], 50)
        assert pairs == {(i, j): (i - j, 1, 1, 1, 1) for i in range(50) for j in range(i + 1)}


def test_a_folder_and_unknown_names(tmp_path: Path) -> None:
    candidate = materialise("dca", BUDGET)
    for path, text in candidate.files.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    again = materialise(str(tmp_path), {"extension": 2.0})
    assert again.files == candidate.files
    assert set(METHODS) | {"identity", "unextended"} == set(list_artifacts())
    with pytest.raises(UnknownNameError, match="did you mean 'self-extend'"):
        materialise("selfextend", BUDGET)
    for wrong in ({}, {"extension": 0.5}, {"extension": float("nan")}, {"density": 0.1}):
        with pytest.raises(ArtifactError):
            materialise("dca", wrong)


# -- layouts -------------------------------------------------------------------------------


def test_doubling_is_true_nearby_continuous_and_grows_ever_slower() -> None:
    n, near = 128, 8
    plan = Plan([*layouts.window(n, near), *layouts.doubling(n, near, 2.0)])
    check(plan, SHAPE, n)
    by_gap = {i - j: gap for (i, j), (gap, *_) in distances(plan, n).items()}
    assert [by_gap[d] for d in range(near)] == list(range(near))
    steps = np.diff([by_gap[d] for d in range(n)])
    assert (steps > 0).all()
    assert (np.diff(steps) <= 1e-9).all()
    assert by_gap[2 * near] == near + near / 2  # half speed over the first doubling
    assert by_gap[4 * near] == near + near / 2 + 2 * near / 4


def test_linear_and_grouped_reach_what_was_asked() -> None:
    n, near, reach = 128, 8, 24
    group = layouts.group_for(n, near, reach)
    far = distances(Plan([*layouts.window(n, near), *layouts.linear(n, near, group)]), n)
    assert far[n - 1, 0][0] == pytest.approx(reach, abs=1)
    whole = int(np.ceil(group))
    rough = distances(Plan([*layouts.window(n, near), *layouts.grouped(n, near, whole)]), n)
    assert rough[n - 1, 0][0] <= reach + 1
    assert all(abs(rough[p][0] - far[p][0]) <= 2 for p in far)


def test_sinks_take_the_first_keys_that_nearer_bands_leave() -> None:
    n = 40
    plan = Plan(layouts.with_sinks([*layouts.window(n, 6), *layouts.dropped(n)], 3, 20))
    pairs = distances(plan, n)
    assert check(plan, SHAPE, n)[1].farthest == 20
    for i in range(n):
        seen = {j for at, j in pairs if at == i}
        assert seen == set(range(max(0, i - 5), i + 1)) | set(range(min(3, i + 1)))
        assert all(pairs[i, j][0] == (i - j if j > i - 6 else 20 - j) for j in seen)


def test_factors_and_scales() -> None:
    change = layouts.base_change(SHAPE, 4.0)
    assert change[0] == 1
    assert change[-1] == pytest.approx(0.25)
    slow = layouts.slow_pairs(SHAPE, 4.0)
    turns = W * SHAPE.frequencies / (2 * np.pi)
    assert [1.0 if t >= 1 else 0.25 for t in turns] == slow.tolist()
    scale = layouts.log_scale(4 * W, W)
    assert (scale[:W] == 1).all()
    assert scale[-1] == pytest.approx(np.log(4 * W) / np.log(W))
    assert layouts.temper(4, 2, 1.5).tolist() == [1, 1, 1.5, 1.5]


# -- examples with a twin --------------------------------------------------------------------


def an_example(**changes: Any) -> Example:
    given: dict[str, Any] = {
        "context": "The code is 12.", "question": "What is the code?", "answers": ("12",),
        "answer_prefix": "The code is", "evidence": ("The code is 12.",), "seed": 3,
    }  # fmt: skip
    return Example(**{**given, **changes})


def test_keys_without_a_twin_are_what_they_were() -> None:
    plain = an_example()
    assert plain.key == "d554134501b25b0f246138c6af7e31c5710df52d6573f247681dc78136a148a4"
    assert "native" not in plain.to_json()
    assert Example.from_json(plain.to_json()) == plain


def test_a_twin_is_part_of_key_and_json() -> None:
    short = an_example(context="A code is 12.")
    long = an_example(native=short)
    assert long.key != an_example().key
    assert long.key == an_example(native=an_example(context="A code is 12.", seed=9)).key
    assert long.key != an_example(native=an_example(context="A code: 12.")).key
    again = Example.from_json(long.to_json())
    assert again == long
    assert again.native == short


def test_the_texts_give_the_numbers_that_are_checked() -> None:
    from galoop.domains.context_extension import background

    text = background.BACKGROUND + background.CONTRACT
    for number in (wire.MAX_BANDS, wire.MAX_PLANS, 16, 4):
        assert str(number) in text
    assert RULES.signature in text
    assert RULES.entry in text
