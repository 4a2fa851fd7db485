"""A proposer whose proposals are paid from a search's meter, recorded, and never paid twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        """End what the proposer has running (an agent); what it spent at last is entered.

        Parameters
        ----------
        interrupted : bool
            Whether the search broke off, so that nothing is to be waited for.
        """
        finish = getattr(self._proposer, "finish", None)
        cost = finish(interrupted) if finish is not None else None
        if cost is not None:
            self._store.spend(self._spend(cost))

    def _attempt(self, request: Request) -> Proposal:
        key = f"{self._stage}/proposal/{request.index}.{len(request.rejected)}"
        record = self._records.get(key)
        if record is not None:
            self._meter.elapsed = 0.0
        elif self._seconds_before:
            self._meter.elapsed += self._seconds_before
            self._seconds_before = 0.0
        self._meter.check()
        self._meter.check_proposal()
        if record is None:
            made = self._proposer.propose(request)
            if made.candidate is None and not made.rejected:
                made = replace(made, rejected="the answer held no candidate")
            self._record(key, request, made)
        elif self._proposer.replayable:
            made = replace(self._proposer.propose(request), cost=_cost(record))
        else:
            made = self._recorded(record, request)
        self._meter.pay(made.cost, "" if made.candidate is not None else made.rejected)
        return made

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
        with self._store.transaction():
            self._store.event(
                "proposal",
                {
                    "stage": self._stage,
                    "who": self.name,
                    "index": request.index,
                    "attempt": len(request.rejected),
                    "parent": request.parent.candidate.key if request.parent else "",
                    "key": candidate.key if candidate is not None else "",
                    "files": files,
                    "note": candidate.note if candidate is not None else "",
                    "rejected": "" if candidate is not None else made.rejected,
                    "dollars": cost.dollars,
                    "input_tokens": cost.input_tokens,
                    "output_tokens": cost.output_tokens,
                    "source": cost.priced_by,
                    "prices": cost.prices,
                    "about": dict(made.about),
                },
                key=key,
            )
            self._store.spend(self._spend(cost))

    def _spend(self, cost: Cost) -> Spend:
        return Spend(
            stage=self._stage,
            who=self.name,
            kind="proposal",
            dollars=cost.dollars,
            input_tokens=cost.input_tokens,
            output_tokens=cost.output_tokens,
            wall_seconds=cost.seconds,
            source=cost.priced_by,
        )


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
