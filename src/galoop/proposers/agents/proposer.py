"""Coding agents in the proposer's seat: one session a proposal, or one session a search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from galoop.proposers.agents import task
from galoop.proposers.agents.adapter import Adapter
from galoop.proposers.agents.server import Call, over
from galoop.proposers.agents.session import FACTS, Ended, Session, whole_cost
from galoop.proposers.agents.worktree import RefusedTree, difference
from galoop.proposers.protocol import Cost, Evaluated, Proposal, Request, Seat
from galoop.search.protocol import StopSearch
from galoop.types import Candidate


class _Agent:
    """What both ways of using an agent share."""

    replayable = False

    def __init__(self, seat: Seat, adapter: Adapter) -> None:
        self.name = f"agent:{adapter.name}"
        self._seat = seat
        self._adapter = adapter
        self._knobs = seat.config.agent
        self._last_opened: Session | None = None

    def sessions(self) -> dict[str, Cost]:
        """What each session of this search that has ended cost as a whole."""
        found = {}
        for folder in _sessions(self._seat.folder):
            last = self._last_opened
            if last is not None and last.ended is None and last.folder.name == folder.name:
                continue  # it runs
            cost = whole_cost(folder, self._adapter, self._knobs)
            if cost is not None:
                found[folder.name] = cost
        return found

    def _open(self, request: Request, evaluations: int, suites: bool = False) -> Session:
        folder = _new_folder(self._seat.directory())
        self._last_opened = Session(
            self._adapter, self._seat.config, folder, request, evaluations, suites
        )
        return self._last_opened

    def _what_is_left(
        self, session: Session, ended: Ended, known: Sequence[str], note: str
    ) -> tuple[Candidate | None, str]:
        """The candidate in the worktree of an agent that has ended, or why there is none."""
        try:
            candidate = session.read(note)
        except RefusedTree as refused:
            entry = {"state": "refused", "reason": str(refused)}
            session.log(entry)
            session.refused = True
            return None, f"{refused} ({ended.reason})"
        if candidate.key in known:
            return None, f"{ended.reason}; its worktree holds nothing new"
        return candidate, ""


class AgentProposer(_Agent):
    """One agent session a proposal: what lies in its worktree at the end is the candidate.

    Exit codes and claims count nothing; a session that ran over its time may have left a candidate
    all the same.

    Parameters
    ----------
    seat : Seat
    adapter : Adapter
    """

    def propose(self, request: Request) -> Proposal:
        """Run a session on the parent's sources."""
        session = self._open(request, evaluations=0)
        try:
            ended = session.next()
        finally:
            session.stop(0.0)
        assert isinstance(ended, Ended)
        known = [request.parent.candidate.key] if request.parent else []
        candidate, rejected = self._what_is_left(session, ended, known, self.name)
        if candidate is not None:
            _log_candidate(session, request.index, candidate)
        session.scrub()
        return Proposal(candidate, session.cost(), rejected, session.about())


class AgentLoop(_Agent):
    """One agent session a search: each call of the evaluation command is a proposal.

    The agent waits in its evaluation command while the search evaluates; the next request brings
    the feedback, which is the command's answer. A search that was killed takes its proposals from
    the log, as for any proposer, and goes on with a new session that is told of them.

    Parameters
    ----------
    seat : Seat
    adapter : Adapter
    """

    def __init__(self, seat: Seat, adapter: Adapter) -> None:
        super().__init__(seat, adapter)
        self._session: Session | None = None
        self._pending: tuple[Call, Candidate] | None = None
        self._looked: set[str] = set()
        gate = seat.config.gate
        self._suites = seat.kind == "artifact" and bool(gate.suites) and gate.look > 0

    def propose(self, request: Request) -> Proposal:
        """Answer the last call; wait for the next one.

        Raises
        ------
        StopSearch
            When the session has ended and everything it left was proposed.
        """
        if self._session is None:
            self._begin(request)
        assert self._session is not None
        if self._session.ended is not None:
            raise StopSearch(f"agent: {self._session.ended.reason}")
        self._report(request)
        while True:
            got = self._session.next()
            if isinstance(got, Ended):
                return self._last(self._session, got, request)
            made = self._take(self._session, got, request)
            if made is not None:
                return made

    def finish(self, interrupted: bool = False) -> None:
        """End the session, with time to say what it cost unless ``interrupted``; idempotent."""
        session = self._session
        if session is None or session.ended is not None:
            return
        if self._pending is not None:
            self._pending[0].answer(over("the search is over: end your work now"))
            self._pending = None
        session.stop(0.0 if interrupted else self._knobs.grace)
        session.scrub()

    # -- one session ------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        ended = _ended_before(self._seat.folder)
        if ended:
            raise StopSearch(f"agent: {ended}")
        left = self._left(request)
        if left <= 0:
            raise StopSearch(f"agent: {self._knobs.max_candidates} candidates evaluated")
        self._session = self._open(request, left, self._suites)

    def _left(self, request: Request) -> int:
        """Evaluations that are left: requests before this one were answered with a candidate."""
        return self._knobs.max_candidates - request.index

    def _report(self, request: Request) -> None:
        """Answer the call whose candidate has been evaluated meanwhile."""
        if self._pending is None or self._session is None:
            return
        call, candidate = self._pending
        self._pending = None
        found = _find(request.history, candidate.key)
        if found is None:  # a search engine that does not pass its history on
            call.answer(over("there is no result"))
            return
        if found.feedback.details.get("suites") is not None:
            self._looked.add(candidate.key)
        answer = self._answer(found, request)
        call.answer(answer)
        answer.pop("examples", None)
        self._session.log({"index": request.index - 1, "key": candidate.key, **answer})

    def _answer(self, found: Evaluated, request: Request) -> dict[str, Any]:
        best = max(one.feedback.score for one in request.history)
        return {
            **task.summary(found.feedback),
            "best_score": round(best, 4),
            "evaluations_left": self._left(request),
        }

    def _take(self, session: Session, call: Call, request: Request) -> Proposal | None:
        """Answer a call at once, or make it a proposal."""
        if call.what == "list":
            call.answer(self._list(request))
            return None
        try:
            candidate = session.read(call.note)
        except RefusedTree as refused:
            answer = {"state": "invalid", "reason": str(refused), "evaluated": False}
            session.log({"index": request.index, **answer})
            call.answer({**answer, "evaluations_left": self._left(request)})
            return Proposal(None, session.cost(), str(refused), session.about())
        suites = call.suites and self._suites and candidate.key not in self._looked
        found = _find(request.history, candidate.key)
        if found is not None and not suites:
            call.answer({**self._answer(found, request), "note": "evaluated before"})
            return None
        if self._left(request) <= 0:
            session.log({"index": request.index, "state": "not evaluated", "key": candidate.key})
            limit = self._knobs.max_candidates
            call.answer(over(f"all {limit} evaluations are used: end your work now"))
            return None
        self._pending = (call, candidate)
        _log_candidate(session, request.index, candidate)
        about = {**session.about(), **({"suites": True} if suites else {})}
        return Proposal(candidate, session.cost(), "", about)

    def _list(self, request: Request) -> dict[str, Any]:
        rows = [
            {"candidate": number, "note": one.candidate.note, **task.summary(one.feedback)}
            for number, one in enumerate(request.history, 1)
        ]
        for row in rows:
            row.pop("examples", None)
        return {"state": "listed", "evaluations_left": self._left(request), "candidates": rows}

    def _last(self, session: Session, ended: Ended, request: Request) -> Proposal:
        known = [one.candidate.key for one in request.history]
        candidate, rejected = self._what_is_left(session, ended, known, "as the agent left it")
        if candidate is not None and self._left(request) <= 0:
            candidate, rejected = None, f"{ended.reason}; no evaluation was left for its last state"
        if candidate is not None:
            _log_candidate(session, request.index, candidate)
        session.scrub()
        about = {**session.about(), "status": ended.status, "refused": session.refused}
        return Proposal(candidate, session.cost(), rejected, about)


def _log_candidate(session: Session, index: int, candidate: Candidate) -> None:
    diff = difference(session.worktree.start, candidate.files)
    session.log({"index": index, "key": candidate.key, "note": candidate.note, "diff": diff})


def _find(history: Sequence[Evaluated], key: str) -> Evaluated | None:
    """The latest entry of a candidate: it knows the most of it."""
    return next((one for one in reversed(history) if one.candidate.key == key), None)


def _sessions(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"session-*/{FACTS}"))


def _new_folder(folder: Path) -> Path:
    number = 1
    while (folder / f"session-{number}").exists():
        number += 1
    return folder / f"session-{number}"


def _ended_before(folder: Path) -> str:
    """How a session of this search ended by itself in an earlier process; "" if none did."""
    for path in _sessions(folder):
        try:
            data = json.loads((path / FACTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if data.get("status") not in (None, "stopped", "killed"):
            return str(data.get("reason", ""))
    return ""
