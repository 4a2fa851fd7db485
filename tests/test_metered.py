"""The metered proposer: what is recorded, handed back, refused, capped; against closed form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import MemoryStore
from fake_programs import probe
from galoop.errors import InfrastructureError
from galoop.evaluation.metered import MeteredProposer
from galoop.evaluation.paired import Meter
from galoop.proposers.protocol import Cost, Proposal, Request, Task
from galoop.search.protocol import StopSearch
from galoop.store.run import RunStore
from search_tools import searched

TASK = Task("probe", "fake", "", "", "")
PRICE = Cost(0.5, 100, 10, 2.0, "estimated", "table 7")


def exhaust(seat: MeteredProposer, before: Callable[[int], None] = lambda index: None) -> str:
    """Ask until the search is stopped; why it was."""
    try:
        for index in range(100):
            before(index)
            seat.propose(request(index))
    except StopSearch as stop:
        return stop.reason
    raise AssertionError("nothing stopped it")


class Model:
    """Answers with a new probe each time, or without one where ``refuses`` says so."""

    name = "model"

    def __init__(
        self,
        refuses: Callable[[int], bool] = lambda call: False,
        replayable: bool = False,
        first: int = 0,
    ) -> None:
        self.replayable = replayable
        self.requests: list[Request] = []
        self._refuses = refuses
        self._first = first

    def propose(self, request: Request) -> Proposal:
        self.requests.append(request)
        call = self._first + len(self.requests) - 1
        if self._refuses(call):
            return Proposal(None, PRICE, f"unreadable {call}", {"finish": "length"})
        return Proposal(probe(2, salt=call), PRICE, "", {"model": "m", "call": call})


def request(index: int) -> Request:
    return Request(TASK, index, None, ())


def metered(model: Any, store: Any, **caps: Any) -> MeteredProposer:
    return MeteredProposer(model, Meter(**caps), store, "round-1/discriminator")


def test_a_record_is_handed_back_unasked_and_unpaid() -> None:
    store, model = MemoryStore(), Model()
    metered(model, store).propose(request(0))
    seat = metered(model, store)
    first = [seat.propose(request(i)) for i in range(3)]
    assert len(model.requests) == 3, "the first of them was there"
    other = Model(first=100)
    again = metered(other, store)
    back = [again.propose(request(i)) for i in range(3)]
    assert not other.requests
    assert [b.candidate for b in back] == [f.candidate for f in first]
    assert [b.about for b in back] == [f.about for f in first]
    assert [(b.cost.dollars, b.cost.priced_by, b.cost.prices) for b in back] == [
        (0.5, "estimated", "table 7")
    ] * 3
    assert len(store.spent) == 3
    assert again.propose(request(3)).candidate == probe(2, salt=100), "what is new is asked for"


def test_a_replayable_proposer_sees_every_request_again_and_is_paid_once() -> None:
    store = MemoryStore()
    seat = metered(Model(replayable=True), store)
    first = [seat.propose(request(i)).candidate for i in range(3)]
    other = Model(replayable=True)
    again = metered(other, store)
    assert [again.propose(request(i)).candidate for i in range(4)][:3] == first
    assert [r.index for r in other.requests] == [0, 1, 2, 3]
    assert len(store.spent) == 4


def test_an_answer_without_a_candidate_is_paid_recorded_and_asked_again_with_its_reason() -> None:
    store, model = MemoryStore(), Model(lambda call: call in (1, 2))
    seat = metered(model, store)
    made = [seat.propose(request(i)) for i in range(3)]
    assert [m.candidate.key for m in made if m.candidate] == [
        probe(2, salt=s).key for s in (0, 3, 4)
    ]
    assert [(r.index, r.rejected) for r in model.requests] == [
        (0, ()),
        (1, ()),
        (1, ("unreadable 1",)),
        (1, ("unreadable 1", "unreadable 2")),
        (2, ()),
    ]
    assert len(store.spent) == 5
    assert sum(s.dollars for s in store.spent) == 2.5
    refused = [e["payload"] for e in store.events("proposal") if e["payload"]["rejected"]]
    assert [(p["index"], p["attempt"], p["rejected"], p["files"]) for p in refused] == [
        (1, 0, "unreadable 1", ""),
        (1, 1, "unreadable 2", ""),
    ]
    silent = Model(first=50)
    again = metered(silent, store)
    assert [again.propose(request(i)).candidate for i in range(3)] == [m.candidate for m in made]
    assert not silent.requests


def test_a_refused_answer_costs_no_evaluation() -> None:
    model = Model(lambda call: call % 2 == 0)
    config = fake.config(discriminator__max_candidates=4)
    found = searched([], config=config, proposer=model)
    assert found.result.candidates == 4
    assert found.result.evaluations == 4 * 24
    assert found.result.rejected == {}, "they are proposals, not candidates"
    assert len(model.requests) == 8, "what could not be evaluated any more is not asked for"
    assert found.store.total("round-1/discriminator").dollars == 8 * 0.5


def test_too_many_in_a_row_end_the_search_and_keep_what_was_found() -> None:
    model = Model(lambda call: call >= 3)
    config = fake.config(discriminator__max_failures=4)
    found = searched([], config=config, proposer=model)
    assert found.result.candidates == 3
    assert found.result.stopped_by == (
        "proposer: 4 proposals in a row held no candidate; the last: unreadable 6"
    )
    silent = Model()
    again = searched([], config=config, proposer=silent, store=found.store)
    assert again.result == found.result
    assert not silent.requests


def test_a_candidate_ends_a_row_of_failures() -> None:
    model = Model(lambda call: call % 3 != 2)
    config = fake.config(discriminator__max_failures=3, discriminator__max_candidates=5)
    assert searched([], config=config, proposer=model).result.candidates == 5


@pytest.mark.parametrize(
    ("caps", "calls", "words"),
    [
        ({"max_proposals": 4}, 4, "proposals: 4 asked for"),
        ({"max_tokens": 440}, 4, "tokens: 440 of 440 used"),
        ({"max_tokens": 441}, 5, "tokens: 550 of 441 used"),
        ({"max_dollars": 1.5}, 3, "dollars: 1.50 of 1.5 spent"),
        ({"max_dollars": 1.6}, 4, "dollars: 2.00 of 1.6 spent"),
    ],
)
@pytest.mark.parametrize("refusing", [False, True])
def test_caps_hold_to_within_one_call_and_over_a_resume(
    caps: dict[str, Any], calls: int, words: str, refusing: bool
) -> None:
    store = MemoryStore()

    model = Model((lambda call: call == 1) if refusing else (lambda call: False))
    assert exhaust(metered(model, store, **caps)) == words
    assert len(model.requests) == calls
    again = Model()
    assert exhaust(metered(again, store, **caps)) == words
    assert not again.requests
    assert len(store.spent) == calls


def test_a_cap_that_is_raised_goes_on_where_it_stopped() -> None:
    store, model = MemoryStore(), Model()
    for cap in (2, 5):
        exhaust(metered(model, store, max_proposals=cap))
        assert len(model.requests) == cap


class Killed(BaseException):
    """Ends the process in place of a signal."""


def test_a_kill_between_answer_and_record_costs_one_proposal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    asked = []
    for kill_at in (1, 0, 2):
        with RunStore.create_or_open(tmp_path / "run", {}) as store:
            seat = metered(model, store)
            index = 0
            while index < kill_at:
                seat.propose(request(index))
                index += 1
            with monkeypatch.context() as patch:
                patch.setattr(store, "spend", _kill)
                if f"round-1/discriminator/proposal/{index}.0" not in _keys(store):
                    with pytest.raises(Killed):
                        seat.propose(request(index))
        asked.append(len(model.requests))
    with RunStore.create_or_open(tmp_path / "run", {}) as store:
        seat = metered(model, store)
        made = [seat.propose(request(i)) for i in range(4)]
        assert len(store.spends()) == 4, "an answer whose record did not get through is not paid"
        assert len({m.candidate.key for m in made if m.candidate}) == 4
    # 0 recorded, 1 lost | nothing new: 0 is recorded | 1 recorded, 2 lost | 2 and 3
    assert asked == [2, 2, 4]
    assert len(model.requests) == 6


def _kill(*spends: Any) -> None:
    raise Killed


def _keys(store: RunStore) -> set[str]:
    return {e["key"] for e in store.events("proposal")}


def test_time_spent_before_counts_and_going_through_the_log_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("galoop.evaluation.paired.time.monotonic", lambda: now[0])

    class Slow(Model):
        def propose(self, request: Request) -> Proposal:
            now[0] += 2.0  # what PRICE says
            return super().propose(request)

    store = MemoryStore()
    seat = metered(Slow(), store, max_seconds=9.0)
    for index in range(3):  # 6 s
        seat.propose(request(index))
    model = Slow(first=50)
    again = metered(model, store, max_seconds=9.0)

    def pause(index: int) -> None:
        now[0] += 4.0 if index < 3 else 0.0  # evaluating again what is in the log

    assert exhaust(again, pause) == "time: 9 s are over"
    # 6 s were spent before; the pause before request 3 is none; 8, then 10 s.
    assert len(model.requests) == 2


def test_one_index_serves_one_request() -> None:
    seat = metered(Model(), MemoryStore())
    seat.propose(request(0))
    with pytest.raises(InfrastructureError, match="two requests of a search have the index 0"):
        seat.propose(request(0))


def test_the_record_of_another_stage_is_not_taken() -> None:
    store, model = MemoryStore(), Model()
    MeteredProposer(model, Meter(), store, "round-1/discriminator").propose(request(0))
    MeteredProposer(model, Meter(), store, "round-2/discriminator").propose(request(0))
    assert len(model.requests) == 2


def test_where_the_dollars_come_from_stands_in_the_ledger() -> None:
    costs = [
        Cost(0.5, source="estimated", prices="t"),
        Cost(0.5),
        Cost(None),
        Cost(0.0),
        Cost(0.0, source="estimated", prices="free of charge"),
    ]
    store = MemoryStore()

    class Priced(Model):
        def propose(self, request: Request) -> Proposal:
            return Proposal(probe(2, salt=request.index), costs[request.index])

    seat = metered(Priced(), store)
    for index in range(len(costs)):
        seat.propose(request(index))
    assert [s.source for s in store.spent] == [
        "estimated",
        "reported",
        "unknown",
        "none",
        "estimated",
    ]
    assert store.total("round-1/discriminator").unpriced == 1


# -- sessions ------------------------------------------------------------------------------


class Agent(Model):
    """Its sessions cost more than its proposals (each of them :data:`PRICE`) say."""

    def __init__(self, sessions: dict[str, Cost], name: str = "s1", first: int = 0) -> None:
        super().__init__(first=first)
        self.ended = sessions
        self.session, self.finished = name, 0

    def propose(self, request: Request) -> Proposal:
        made = super().propose(request)
        about = {"session": self.session, "seconds": 2.0 * len(self.requests)}
        return Proposal(made.candidate, made.cost, "", about)

    def sessions(self) -> dict[str, Cost]:
        return dict(self.ended)

    def finish(self, interrupted: bool = False) -> None:
        self.finished += 1


def spent(store: MemoryStore) -> tuple[float, int, int, int]:
    total = store.total("round-1/discriminator")
    return total.dollars, total.input_tokens, total.output_tokens, total.unpriced


def test_a_session_is_entered_with_all_that_it_cost_and_once() -> None:
    store, agent = MemoryStore(), Agent({})
    seat = metered(agent, store)
    for index in range(3):
        seat.propose(request(index))
    agent.ended = {"s1": Cost(2.0, 450, 35, 9.0, "estimated", "table 7")}
    assert spent(store) == (1.5, 300, 30, 0)
    for _ in range(2):
        seat.finish()
    assert spent(store) == (2.0, 450, 35, 0), "the whole, whatever the proposals said"
    (entry,) = [s for s in store.spent if s.kind == "session"]
    assert (entry.dollars, entry.input_tokens, entry.output_tokens) == (0.5, 150, 5)
    assert (entry.wall_seconds, entry.source, entry.who) == (3.0, "estimated", "model")
    # Another process, to which the session's files say the same, or (a changed price) more.
    for whole in (2.0, 7.0):
        again = metered(Agent({"s1": Cost(whole, 450, 35, 9.0)}), store)
        for index in range(3):
            again.propose(request(index))
        again.finish()
        assert spent(store) == (2.0, 450, 35, 0)


@pytest.mark.parametrize(
    ("whole", "beyond"),
    [
        (Cost(1.0, 200, 20, 4.0), None),
        (Cost(0.9, 150, 20), None),  # says less than it did before
        (Cost(1.0, 201, 20), (0.0, 1, 0)),
        (Cost(1.25, 200, 20), (0.25, 0, 0)),
        (Cost(None, 200, 20), (None, 0, 0)),
    ],
)
def test_what_a_session_cost_beyond_its_proposals(whole: Cost, beyond: Any) -> None:
    store, agent = MemoryStore(), Agent({})
    seat = metered(agent, store)
    for index in range(2):
        seat.propose(request(index))
    agent.ended = {"s1": whole}
    seat.finish()
    found = [
        (s.dollars, s.input_tokens, s.output_tokens) for s in store.spent if s.kind == "session"
    ]
    assert found == ([] if beyond is None else [beyond])


def test_a_price_that_is_not_known_is_said_once() -> None:
    class Priceless(Agent):
        def propose(self, request: Request) -> Proposal:
            made = super().propose(request)
            return Proposal(made.candidate, Cost(None, 100, 10), "", made.about)

    store, agent = MemoryStore(), Priceless({})
    seat = metered(agent, store)
    seat.propose(request(0))
    agent.ended = {"s1": Cost(None, 150, 10)}
    seat.finish()
    assert spent(store) == (0.0, 150, 10, 1)


@pytest.mark.parametrize(
    ("caps", "words"),
    [
        ({"max_dollars": 2.0}, "dollars: 2.50 of 2 spent"),
        ({"max_tokens": 500}, "tokens: 620 of 500 used"),
    ],
)
def test_caps_count_what_sessions_of_earlier_processes_cost(
    caps: dict[str, Any], words: str
) -> None:
    """Two processes were killed or interrupted; a third may start nothing beyond the cap."""
    store = MemoryStore()
    first = Agent({}, "s1")
    seat = metered(first, store, **caps)
    for index in range(2):
        seat.propose(request(index))  # $1.00, 220 tokens
    # s1 went on for a while after its last proposal; s2 came to none at all.
    ended = {"s1": Cost(2.0, 400, 20), "s2": Cost(0.5, 180, 20)}
    second = Agent(ended, "s3", first=10)
    seat = metered(second, store, **caps)
    back = [seat.propose(request(index)) for index in range(2)]
    assert len(back) == 2, "what was paid for is handed back whatever the caps say"
    with pytest.raises(StopSearch, match=words):
        seat.propose(request(2))
    assert not second.requests, "nothing new was started"
    assert spent(store) == (2.5, 580, 40, 0)
    # Again, from the record alone: its folder may be gone.
    third = Agent({}, "s4")
    assert exhaust(metered(third, store, **caps)) == words
    assert not third.requests
    assert spent(store) == (2.5, 580, 40, 0)


def test_a_proposer_is_told_what_is_left() -> None:
    store = MemoryStore()
    agent = Agent({"s0": Cost(0.75, 10, 1)})
    seat = metered(agent, store, max_dollars=2.5)
    for index in range(3):
        seat.propose(request(index))
    assert [r.dollars_left for r in agent.requests] == [1.75, 1.25, 0.75]
    without = Agent({})
    metered(without, MemoryStore()).propose(request(0))
    assert without.requests[0].dollars_left is None


def test_a_kill_between_session_and_record_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {"s1": Cost(1.0, 150, 15)}
    with RunStore.create_or_open(tmp_path / "run", {}) as store:
        seat = metered(Agent({}), store)
        seat.propose(request(0))
        seat = metered(Agent(ended), store)
        with monkeypatch.context() as patch:
            patch.setattr(store, "spend", _kill)
            with pytest.raises(Killed):
                seat.finish()
    with RunStore.create_or_open(tmp_path / "run", {}) as store:
        assert store.events("session") == [], "event and entry go together"
        for _ in range(2):
            metered(Agent(ended), store).finish()
            total = store.total("round-1/discriminator")
            assert (total.dollars, total.input_tokens, total.output_tokens) == (1.0, 150, 15)
