"""A proposer whose proposals are paid from a search's meter, recorded, and never paid twice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.errors import InfrastructureError
from galoop.evaluation.paired import Meter
from galoop.hashing import canonical_json
from galoop.proposers.protocol import Cost, Proposal, Proposer, Request, Seat, Task
from galoop.store.ledger import Spend
from galoop.store.run import RunStore
from galoop.types import Candidate

#: Differences of sums below this are what floating point leaves.
_ROUNDING = 1e-9


class MeteredProposer:
    """Checks the caps before each proposal, and records what was proposed and what it cost, once.

    A proposal stands in the run's log under the index of its request. A resumed search makes the
    same requests again: what a model, an agent or a person answered is then handed back from the
    log, unasked and unpaid; a proposer that is replayable is asked again, so that it comes to the
    same state. In both cases the meter counts the recorded cost, so that the search stops where an
    uninterrupted one does. A kill between an answer and its record costs that one proposal.

    An answer without a candidate is recorded and paid too. The same request is then made again,
    with the reason in :attr:`galoop.proposers.protocol.Request.rejected`, until there is a
    candidate or the meter says that there were too many such answers in a row: a search engine
    sees candidates only.

    A session (of an agent) may cost more than the sum of its proposals: what it spends after the
    last one, or before the process was killed. That is the cost of the whole session less what its
    recorded proposals cost; it is recorded once for each session, as an event of its own, before
    anything new is asked for, and counts against the caps like a proposal's.

    Parameters
    ----------
    proposer : Proposer
    meter : Meter
    store : RunStore
    stage : str
        For the ledger and the log.
    """

    def __init__(self, proposer: Proposer, meter: Meter, store: RunStore, stage: str) -> None:
        self.name = proposer.name
        self.replayable = proposer.replayable
        self._proposer = proposer
        self._meter = meter
        self._store = store
        self._stage = stage
        self._records: dict[str, dict[str, Any]] = {
            e["key"]: e["payload"]
            for e in store.events("proposal")
            if e["payload"]["stage"] == stage
        }
        self._asked: set[int] = set()
        #: Session -> what it cost beyond its proposals, as recorded; and those the meter counted.
        self._beyond: dict[str, Cost] = {
            e["payload"]["session"]: _cost(e["payload"])
            for e in store.events("session")
            if e["payload"]["stage"] == stage
        }
        self._charged: set[str] = set()
        self._at_end_of_log = False
        # Time spent before this process counts; going through the log again does not.
        self._seconds_before = store.total(stage).wall_seconds if self._records else 0.0

    def propose(self, request: Request) -> Proposal:
        """A proposal that holds a candidate.

        Raises
        ------
        StopSearch
            Before anything is spent, when a cap is reached; after an answer without a candidate,
            when it was one too many.
        InfrastructureError
            When a request of that index was made before in this search.
        """
        if request.index in self._asked:
            raise InfrastructureError(
                f"{self._stage}: two requests of a search have the index {request.index}",
                "a search engine must number its requests 0, 1, 2, …",
            )
        self._asked.add(request.index)
        rejected: list[str] = []
        while True:
            made = self._attempt(replace(request, rejected=tuple(rejected)))
            if made.candidate is not None:
                return made
            rejected.append(made.rejected)

    def finish(self, interrupted: bool = False) -> None:
        """End what the proposer has running (an agent), and enter what it spent at last.

        Doing it again changes nothing.

        Parameters
        ----------
        interrupted : bool
            Whether the search broke off, so that nothing is to be waited for.
        """
        finish = getattr(self._proposer, "finish", None)
        if finish is not None:
            finish(interrupted)
        self._settle()

    def _settle(self) -> None:
        """Record what sessions cost beyond their proposals, and count it, once."""
        sessions = getattr(self._proposer, "sessions", None)
        for name, whole in (sessions() if sessions is not None else {}).items():
            if name not in self._beyond:
                self._beyond[name] = self._record_session(name, whole)
        for name, cost in self._beyond.items():
            if name not in self._charged and _something(cost):
                self._meter.charge(cost)
            self._charged.add(name)

    def _record_session(self, name: str, whole: Cost) -> Cost:
        made = [r for r in self._records.values() if r["about"].get("session") == name]
        cost = _beyond(whole, made)
        if _something(cost):
            payload = {"stage": self._stage, "who": self.name, "session": name, **_figures(cost)}
            with self._store.transaction():
                self._store.event("session", payload, key=f"{self._stage}/session/{name}")
                self._store.spend(self._spend(cost, "session"))
        return cost

    def _attempt(self, request: Request) -> Proposal:
        key = f"{self._stage}/proposal/{request.index}.{len(request.rejected)}"
        record = self._records.get(key)
        if record is not None:
            self._meter.elapsed = 0.0
        elif not self._at_end_of_log:
            self._at_end_of_log = True
            self._meter.elapsed += self._seconds_before
            self._settle()
        self._meter.check()
        self._meter.check_proposal()
        if record is None:
            made = self._ask(request)
            if made.candidate is None and not made.rejected:
                made = replace(made, rejected="the answer held no candidate")
            self._record(key, request, made)
        elif self._proposer.replayable:
            made = replace(self._ask(request), cost=_cost(record))
        else:
            made = self._recorded(record, request)
        self._meter.pay(made.cost, "" if made.candidate is not None else made.rejected)
        return made

    def _ask(self, request: Request) -> Proposal:
        return self._proposer.propose(replace(request, dollars_left=self._meter.dollars_left))

    def _recorded(self, record: Mapping[str, Any], request: Request) -> Proposal:
        candidate = None
        if record["files"]:
            files = json.loads(self._store.get_object(record["files"]))
            candidate = Candidate(request.task.kind, files, record["note"])
        return Proposal(candidate, _cost(record), record["rejected"], record["about"])

    def _record(self, key: str, request: Request, made: Proposal) -> None:
        cost, candidate = made.cost, made.candidate
        files = ""
        if candidate is not None:
            text = canonical_json(dict(candidate.files))
            files = self._store.put_object(text.encode("utf-8"))
        payload = {
            "stage": self._stage,
            "who": self.name,
            "index": request.index,
            "attempt": len(request.rejected),
            "parent": request.parent.candidate.key if request.parent else "",
            "key": candidate.key if candidate is not None else "",
            "files": files,
            "note": candidate.note if candidate is not None else "",
            "rejected": "" if candidate is not None else made.rejected,
            **_figures(cost),
            "about": dict(made.about),
        }
        with self._store.transaction():
            self._store.event("proposal", payload, key=key)
            self._store.spend(self._spend(cost, "proposal"))
        self._records[key] = payload

    def _spend(self, cost: Cost, kind: str) -> Spend:
        return Spend(
            stage=self._stage,
            who=self.name,
            kind=kind,
            dollars=cost.dollars,
            input_tokens=cost.input_tokens,
            output_tokens=cost.output_tokens,
            wall_seconds=cost.seconds,
            source=cost.priced_by,
        )


def _figures(cost: Cost) -> dict[str, Any]:
    """A cost as part of an event; the inverse of :func:`_cost`, but for the time."""
    return {
        "dollars": cost.dollars,
        "input_tokens": cost.input_tokens,
        "output_tokens": cost.output_tokens,
        "source": cost.priced_by,
        "prices": cost.prices,
    }


def _beyond(whole: Cost, proposals: Sequence[Mapping[str, Any]]) -> Cost:
    """What a session cost less what its recorded proposals did; nothing is negative.

    Where the price of the whole is not known, a proposal may have said so already.
    """
    seconds = max((float(r["about"].get("seconds", 0.0)) for r in proposals), default=0.0)
    said = any(r["dollars"] is None for r in proposals)
    dollars: float | None = 0.0
    if not said and whole.dollars is None:
        dollars = None
    elif not said and whole.dollars is not None:
        left = whole.dollars - math.fsum(r["dollars"] for r in proposals)
        dollars = left if left > _ROUNDING else 0.0
    return Cost(
        dollars,
        max(0, whole.input_tokens - sum(r["input_tokens"] for r in proposals)),
        max(0, whole.output_tokens - sum(r["output_tokens"] for r in proposals)),
        max(0.0, whole.seconds - seconds),
        source=whole.source if dollars else None,
        prices=whole.prices if dollars else "",
    )


def _something(cost: Cost) -> bool:
    return cost.dollars is None or bool(cost.dollars or cost.input_tokens or cost.output_tokens)


def _cost(record: Mapping[str, Any]) -> Cost:
    return Cost(
        record["dollars"],
        record["input_tokens"],
        record["output_tokens"],
        source=record["source"],
        prices=record["prices"],
    )


def seated(
    config: ExperimentConfig,
    session: DomainSession,
    store: RunStore,
    meter: Meter,
    name: str,
    task: Task,
    seed: int,
    stage: str,
) -> MeteredProposer:
    """The proposer ``name`` in the seat of one search, paid from its meter.

    Parameters
    ----------
    task : Task
        What is proposed for.
    seed : int
    stage : str
        ``round-1/generator``: for the ledger, the log, and the proposer's own folder.
    """
    seat = Seat(task.domain, task.kind, seed, config, store.folder(stage), stage)
    return MeteredProposer(session.proposer(name, seat), meter, store, stage)
