"""The search over programs of scored signals: a domain says what its programs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic

from galoop.hashing import content_hash
from galoop.proposers.grammar.engine import GrammarProposer, Move, MoveContext
from galoop.proposers.grammar.signals.moves import Chooser
from galoop.proposers.grammar.signals.tree import P, to_json
from galoop.proposers.protocol import Proposal, Request
from galoop.types import Candidate


@dataclass(frozen=True)
class Language(Generic[P]):
    """What a domain says of its programs.

    Attributes
    ----------
    moves : mapping
        The moves by name, in a fixed order, without the crossing.
    cross : callable (program, partner, chooser) -> program
    normalise : callable (program) -> program
        Equal programs become equal trees.
    read : callable (candidate) -> program or None
        The tree of a candidate that this language wrote.
    wrappable : callable (candidate) -> str
        The source of another candidate that can be a part of a program; "" for none.
    """

    moves: Mapping[str, Callable[[P, Chooser], P | None]]
    cross: Callable[[P, P, Chooser], P]
    normalise: Callable[[P], P]
    read: Callable[[Candidate], P | None]
    wrappable: Callable[[Candidate], str]


class SignalGrammar(GrammarProposer[P]):
    """Proposes programs of scored signals; a subclass sets ``language``.

    Parameters
    ----------
    seed : int
    """

    language: Language[P]
    _base: str | None = None

    def moves(self) -> Mapping[str, Move[P]]:
        """The moves by name."""
        table: dict[str, Move[P]] = {
            name: partial(self._moved, name) for name in self.language.moves
        }
        table["cross"] = self._crossed
        return table

    def identity(self, tree: P) -> str:
        """Equal for equal programs."""
        return content_hash([to_json(tree), tree.base])

    def features(self, tree: P) -> Mapping[str, str]:
        """The choices to learn about. Presence of a signal is a slot of its own."""
        found = {"pool": repr(tree.pool)}
        if len(tree.signals) > 1:
            found["combine"] = repr(tree.combine)
        for signal in tree.signals:
            found[f"use {signal.name}"] = "yes"
            found["transform"] = repr(signal.transform)
            found.update({f"{signal.name}.{k}": repr(v) for k, v in signal.options})
        return found

    def choice_weights(self, slot: str, context: MoveContext[P]) -> Mapping[str, float]:
        """Signals are weighted by what programs that used them were worth."""
        if slot != "signal":
            return {}
        weights = {}
        for name, bandit in self.choices.items():
            if name.startswith("use "):
                # squared: a signal shares the credit of those that it appeared with
                weights[repr(name.removeprefix("use "))] = (2.0 * bandit.mean("yes")) ** 2
        return weights

    def revive(self, candidate: Candidate) -> P | None:
        """A tree that some grammar of this language wrote."""
        return self.language.read(candidate)

    def propose(self, request: Request) -> Proposal:
        """Return a program that was never proposed or evaluated before in this search."""
        started_from = [*request.history[:1], *([request.parent] if request.parent else [])]
        if self._base is None and started_from:
            first = started_from[0].candidate
            own = self.language.read(first)
            self._base = own.base if own is not None else self.language.wrappable(first)
        return super().propose(request)

    def chooser(self, context: MoveContext[P]) -> Chooser:
        """Draws of this proposal; they may use what the search started from."""
        return Chooser(
            context.rng, lambda slot, options: self.pick(slot, options, context), self._base or ""
        )

    def _moved(self, name: str, tree: P, context: MoveContext[P]) -> P | None:
        changed = self.language.moves[name](tree, self.chooser(context))
        return None if changed is None else self.language.normalise(changed)

    def _crossed(self, tree: P, context: MoveContext[P]) -> P | None:
        partner = context.partner(tree)
        if partner is None:
            return None
        return self.language.normalise(self.language.cross(tree, partner, self.chooser(context)))
