"""What an earlier run proposed, handed back: a run is reproduced without any model, key or cost."""

from __future__ import annotations

import json
from pathlib import Path

from galoop.errors import StoreError, UsageError
from galoop.proposers.protocol import Proposal, Request, Seat
from galoop.search.protocol import StopSearch
from galoop.store.run import RunStore
from galoop.types import Candidate


class RecordedProposer:
    """Hands back the proposals of the same stage of another run, in their places.

    Nothing is spent. The search ends where the recorded one asked for nothing more.

    Parameters
    ----------
    seat : Seat
        Its table ``[recorded]`` names the run folder.

    Raises
    ------
    UsageError
        No run is named, or it is this run itself.
    StoreError
        That folder holds no run.
    """

    name = "recorded"
    replayable = True

    def __init__(self, seat: Seat) -> None:
        run = seat.config.recorded.run
        if not run:
            raise UsageError(
                "recorded.run is empty", "name the run folder whose proposals are handed back"
            )
        if Path(run, "proposers").resolve() in seat.folder.resolve().parents:
            raise UsageError(
                f"recorded.run is the folder of this run itself: {run}", "choose another run folder"
            )
        self._stage = seat.stage
        self._store = RunStore.open(Path(run))
        with self._store as store:
            self._records = {
                e["key"]: e["payload"]
                for e in store.events("proposal")
                if e["payload"]["stage"] == seat.stage
            }

    def propose(self, request: Request) -> Proposal:
        """The recorded proposal of the request's index.

        Raises
        ------
        StopSearch
            The recorded search made no such request.
        StoreError
            It made another one: this search is not the recorded one.
        """
        key = f"{self._stage}/proposal/{request.index}.{len(request.rejected)}"
        record = self._records.get(key)
        if record is None:
            raise StopSearch("recorded: the recorded search asked for nothing more")
        parent = request.parent.candidate.key if request.parent is not None else ""
        if record["parent"] != parent:
            raise StoreError(
                f"{key}: the recorded search changed another parent here",
                "a recorded run is reproduced with its own settings, model and versions",
            )
        if not record["files"]:
            return Proposal(None, rejected=record["rejected"], about=record["about"])
        files = json.loads(self._store.get_object(record["files"]))
        return Proposal(Candidate(request.task.kind, files, record["note"]), about=record["about"])
