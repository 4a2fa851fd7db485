"""A proposer whose proposals are paid from a search's meter and entered in the ledger."""

from __future__ import annotations

from galoop.evaluation.paired import Meter
from galoop.proposers.protocol import Proposal, Proposer, Request
from galoop.store.ledger import Source, Spend
from galoop.store.run import RunStore


class MeteredProposer:
    """Checks the caps before each proposal, and records what it cost, once.

    A resumed search asks for the same proposals again. What one cost stands in the run's log under
    its index: the meter then counts that figure, so that the search stops where an uninterrupted
    one does, and the ledger is not charged a second time.

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
        self._proposer = proposer
        self._meter = meter
        self._store = store
        self._stage = stage
        self._paid = {e["key"]: e["payload"]["dollars"] for e in store.events("proposal")}

    def propose(self, request: Request) -> Proposal:
        """The proposer's own proposal.

        Raises
        ------
        StopSearch
            Before anything is spent, when a cap is reached.
        """
        self._meter.check()
        self._meter.check_price()
        proposal = self._proposer.propose(request)
        key = f"{self._stage}/proposal/{request.index}"
        if key not in self._paid:
            self._record(key, proposal)
        self._meter.pay(self._paid[key])
        return proposal

    def _record(self, key: str, proposal: Proposal) -> None:
        cost = proposal.cost
        with self._store.transaction():
            self._store.event(
                "proposal",
                {
                    "stage": self._stage,
                    "who": self.name,
                    "key": proposal.candidate.key,
                    "dollars": cost.dollars,
                },
                key=key,
            )
            self._store.spend(
                Spend(
                    stage=self._stage,
                    who=self.name,
                    kind="proposal",
                    dollars=cost.dollars,
                    input_tokens=cost.input_tokens,
                    output_tokens=cost.output_tokens,
                    wall_seconds=cost.seconds,
                    source="unknown" if cost.dollars is None else _source(cost.dollars),
                )
            )
        self._paid[key] = cost.dollars


def _source(dollars: float) -> Source:
    return "reported" if dollars else "none"
