"""The gate of the generator, its caps, and what is refused before a run begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import FakeSession, ListProposer, World
from fake_programs import artifact
from galoop.errors import UsageError
from galoop.evaluation.statistics import mcnemar_p
from galoop.gate import check_confirmation, check_gate, component_names, suite_components
from galoop.proposers.protocol import Cost, Proposal
from search_tools import (
    GOOD,
    PARENT,
    improved,
    truth,
    weak,
)


def test_a_loss_on_a_suite_is_refused() -> None:
    found = improved([artifact(1.0, 0.5, 0.4)])
    assert found.result.accepted is None
    (trial,) = found.result.trials
    assert trial.reason.startswith("gate: fake/easy fail: ")
    assert [v.status for v in trial.components] == ["fail"], "the first that fails ends it"


def test_an_inconclusive_component_is_refused() -> None:
    # A small true loss that n examples cannot tell from more than delta.
    config = fake.config(gate__delta=0.12, gate__examples=30)
    lost = artifact(1.0, 0.93, 0.4)
    examples = dict(suite_components(config, FakeSession(config, World())))["fake/easy"]
    assert 0.88 < truth(lost, examples) < 1.0
    found = improved([lost], config=config)
    assert found.result.accepted is None
    assert found.result.trials[0].reason.startswith("gate: fake/easy inconclusive: ")


def test_components_that_the_reference_fails_are_shown_and_do_not_gate() -> None:
    found = improved([GOOD])
    assert found.result.accepted is not None
    verdicts = {v.component: v.status for v in found.result.accepted.components}
    assert verdicts == {"fake/easy": "pass", "fake/mid": "pass", "fake/hopeless": "not gating"}


def test_a_gate_of_which_nothing_gates_is_not_passed() -> None:
    found = improved([GOOD], config=fake.config(gate__components=("hopeless",)))
    assert found.result.accepted is None
    assert "inconclusive" in found.result.trials[0].reason
    none = improved([GOOD], config=fake.config(gate__suites=()))
    assert none.result.accepted is not None
    assert "no suite was asked for" in none.result.accepted.reason


def test_the_gate_compares_with_the_start_artifact_and_not_with_the_parent() -> None:
    # Gains of an earlier generation on the suites may be given back, losses against A0 may not.
    start, parent = artifact(0.2, 0.6, 0.4), artifact(0.2, 1.0, 0.4)
    assert improved([artifact(1.0, 0.6, 0.4)], parent=parent, start=start).result.accepted
    assert not improved([artifact(1.0, 0.6, 0.4)], parent=parent).result.accepted


def test_a_candidate_that_is_the_start_artifact_itself_is_evaluated_once() -> None:
    # The second round may come back to A0's very files: two names, one system.
    start, parent = artifact(1.0, 1.0, 1.0), artifact(0.2, 1.0, 0.4)
    found = improved([start], parent=parent, start=start)
    assert found.result.accepted is not None
    assert max(found.world.calls.values()) == 1
    gate = [s for s in found.store.spent if s.stage.endswith("/gate")]
    assert sum(s.evaluations for s in gate) == 40 * 3 * 2


pytestmark = pytest.mark.usefixtures("world")  # the suite `fake` is known


# -- caps ----------------------------------------------------------------------------------


def test_caps_of_candidates_and_dollars() -> None:
    found = improved(weak(9), config=fake.config(generator__max_candidates=4))
    assert (found.result.candidates, found.result.stopped_by) == (4, "candidates: 4 tried")
    config = fake.config(generator__max_dollars=1.0)
    paid = improved(weak(9), config=config, cost=Cost(0.5))
    assert paid.result.candidates == 2
    assert paid.result.stopped_by == "dollars: 1.00 of 1 spent"


@pytest.mark.parametrize("cap", [1, 6, 30, 60, 1000])
def test_the_cap_of_evaluations_bounds_the_search(cap: int) -> None:
    found = improved(weak(9), config=fake.config(generator__max_evaluations=cap))
    assert found.result.evaluations <= cap
    assert sum(found.world.calls.values()) <= cap


def test_with_gepa_the_parent_in_the_request_is_the_artifact_to_change() -> None:
    from galoop.search.gepa import GepaSearch

    proposer = fake.RandomProposer("artifact", 3)
    found = improved([], search=GepaSearch(), proposer=proposer, config=fake.config(
        generator__max_candidates=25, generator__target=1.0, generator__attempts=1))  # fmt: skip
    assert found.result.candidates == 25
    assert proposer.requests[0].parent is not None
    assert proposer.requests[0].parent.candidate.key == PARENT.key
    assert found.result.best > found.result.parent


# -- what could never pass is refused at once ----------------------------------------------


def test_components_of_the_gate() -> None:
    def names(**changes: Any) -> list[str]:
        return [c for _, c in component_names(fake.config(**changes))]

    install = pytest.MonkeyPatch()
    with install.context() as patch:
        fake.install(World(), patch.setattr)
        assert names() == ["easy", "mid", "hopeless"]
        assert names(gate__components=("mid", "easy")) == ["mid", "easy"]
        with pytest.raises(UsageError, match=r"no component 'eazy' in fake; did you mean easy\?"):
            names(gate__components=("mid", "eazy"))
        with pytest.raises(UsageError, match="there are: easy, mid, hopeless"):
            names(gate__components=("something",))
        two = component_names(fake.config(gate__suites=("fake", "ruler"), gate__components=("vt",)))
        assert ("ruler", "vt") in two
        assert len(two) == 4, "a suite of which no component is named takes part with all"


def test_a_gate_that_nothing_could_pass_is_refused(world: World) -> None:
    def check(**changes: Any) -> None:
        config = fake.config(**changes)
        check_gate(config, FakeSession(config, world))

    check(gate__examples=25, gate__delta=0.1)
    with pytest.raises(UsageError, match=r"gate.examples = 24: .*fewer than 25 .*raise gate.ex"):
        check(gate__examples=24, gate__delta=0.1)
    with pytest.raises(UsageError, match=r"gate.delta = 0 must lie strictly"):
        check(gate__delta=0.0)
    check(gate__delta=0.0, gate__suites=())


def test_a_confirmation_set_that_is_too_small_is_refused() -> None:
    check_confirmation(fake.config(), [5])
    check_confirmation(fake.config(), [11, 1])
    with pytest.raises(UsageError, match=r"leaves 4 .*fewer than 5 can never show one"):
        check_confirmation(fake.config(), [4])
    with pytest.raises(UsageError, match=r"leaves 0 "):
        check_confirmation(fake.config(), [-20])
    with pytest.raises(UsageError, match=r"leaves 10 .*fewer than 11 .*earlier slice"):
        check_confirmation(fake.config(), [10, 20])
    # The figures are those of the tests themselves.
    assert mcnemar_p([0.0] * 4, [1.0] * 4) > 0.05 >= mcnemar_p([0.0] * 5, [1.0] * 5)


def test_files_of_a_candidate_are_kept(tmp_path: Path) -> None:

    found = improved([GOOD])
    events = found.store.events("candidate")
    kept = [json.loads(found.store.objects[e["payload"]["files"]]) for e in events]
    assert kept == [dict(PARENT.files), dict(GOOD.files)]
    assert isinstance(ListProposer([GOOD]).propose(found.proposer.requests[0]), Proposal)
