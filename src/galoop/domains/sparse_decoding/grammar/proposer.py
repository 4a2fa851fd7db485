"""The built-in generator: searches selector programs over a broad, neutral space."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from galoop.domains.sparse_decoding.grammar.moves import (
    MOVES,
    Chooser,
    cross,
    new_program,
    plain_program,
)
from galoop.domains.sparse_decoding.grammar.render import render, revive, wrappable
from galoop.domains.sparse_decoding.grammar.tree import (
    BY_QUERY,
    Program,
    index_fraction,
    normalise,
    to_json,
)
from galoop.hashing import content_hash
from galoop.proposers.grammar.engine import GrammarProposer, Move, MoveContext
from galoop.proposers.protocol import Proposal, Request
from galoop.types import Candidate

#: Share of fresh programs that are plain.
PLAIN = 0.8
#: Share of plain ones in which the selector that the search started from has part of the budget.
BESIDE = 0.5

SPACE = """\
What the selector grammar can write. A program scores the entries of the cache for each row and
query head and attends to the highest, as many as the budget allows. It has

- one to three signals, one of them by the query: products over the dimensions in which keys are
  large or vary, in a principal or random subspace, with product-quantised keys (PQCache's), with
  keys rounded to a few levels, upper bounds of a page (Quest's), products with a page's mean; and
  the norms of keys and values, recency, what the row before chose, what the layer below chose;
- for each signal a sign, a transform (none, z-score, rank, softmax); a weighted sum, the maximum,
  or turns;
- one choice for each query head, or for a KV head by the sum, the maximum, or the votes of its
  query heads;
- pooling over neighbours, runs of entries, a spread that avoids neighbours;
- shares of the budget for sinks and recent entries; heads that share their room or do not;
- a share of the budget for the selector that the search started from.

Exact products over all dimensions are not in it: an index is smaller than the keys (by signal at
most a half in float32 or bfloat16), and programs whose index would be over the experiment's
index_fraction are not proposed. Four of five fresh programs are plain: each signal by the query in
its turn, then pairs with another, with the rest as simple as it can be. All options are drawn
evenly at first; what paid is drawn more often later. The space is made of what the literature on
sparse attention uses; no program in it was written for a known slice.
"""


class SelectorGrammar(GrammarProposer[Program]):
    """Proposes selector programs (artifact folders).

    Parameters
    ----------
    seed : int
    """

    def moves(self) -> Mapping[str, Move[Program]]:
        """The moves by name."""
        table: dict[str, Move[Program]] = {name: partial(self._moved, name) for name in MOVES}
        table["cross"] = self._crossed
        return table

    def fresh(self, context: MoveContext[Program]) -> Program:
        """A program from nothing; the selector it started from may have a share of the budget."""
        choose = self._chooser(context)
        if context.rng.random() >= PLAIN:
            return new_program(choose)
        beside = bool(choose.base) and context.rng.random() < BESIDE
        unseen = [n for n in BY_QUERY if f"use {n}" not in self.choices]
        if unseen:
            return plain_program(choose, [context.rng.choice(unseen)], beside=beside)
        first = choose.text("signal", BY_QUERY)
        pair = new_program(choose).signals[-1].name
        names = [first] if pair == first else [first, pair]
        return plain_program(choose, names, beside=beside)

    def render(self, tree: Program, note: str) -> Candidate:
        """The artifact folder of a tree."""
        return render(tree, self._budget, note)

    def identity(self, tree: Program) -> str:
        """Equal for equal programs."""
        return content_hash([to_json(tree), tree.base])

    def features(self, tree: Program) -> Mapping[str, str]:
        """The choices to learn about. Presence of a signal is a slot of its own."""
        found = {
            "group": repr(tree.group),
            "pool": repr(tree.pool),
            "run": repr(tree.run),
            "sink": repr(tree.sink),
            "recent": repr(tree.recent),
        }
        if len(tree.signals) > 1:
            found["combine"] = repr(tree.combine)
        if tree.base:
            found["fraction"] = repr(tree.fraction)
        for signal in tree.signals:
            found[f"use {signal.name}"] = "yes"
            found["transform"] = repr(signal.transform)
            found.update({f"{signal.name}.{k}": repr(v) for k, v in signal.options})
        return found

    def choice_weights(self, slot: str, context: MoveContext[Program]) -> Mapping[str, float]:
        """Signals are weighted by what programs that used them were worth."""
        if slot != "signal":
            return {}
        weights = {}
        for name, bandit in self.choices.items():
            if name.startswith("use "):
                # squared: a signal shares the credit of those that it appeared with
                weights[repr(name.removeprefix("use "))] = (2.0 * bandit.mean("yes")) ** 2
        return weights

    def excluded(self, tree: Program, candidate: Candidate, request: Request) -> bool:
        """Whether its index would be over the budget."""
        return index_fraction(tree) > self._budget.get("index_fraction", 2.0)

    def revive(self, candidate: Candidate) -> Program | None:
        """A tree that some selector grammar wrote."""
        return revive(candidate)

    # Requests carry the budget and the selector that the search started from.

    _budget: Mapping[str, float] = {"density": 1.0}
    _base: str | None = None

    def propose(self, request: Request) -> Proposal:
        """Return a program that was never proposed or evaluated before in this search."""
        self._budget = {"density": 1.0, **request.task.budget}
        started_from = [*request.history[:1], *([request.parent] if request.parent else [])]
        if self._base is None and started_from:
            first = started_from[0].candidate
            own = revive(first)
            self._base = own.base if own is not None else wrappable(first)
        return super().propose(request)

    def _chooser(self, context: MoveContext[Program]) -> Chooser:
        return Chooser(
            context.rng, lambda slot, options: self.pick(slot, options, context), self._base or ""
        )

    def _moved(self, name: str, tree: Program, context: MoveContext[Program]) -> Program | None:
        changed = MOVES[name](tree, self._chooser(context))
        return None if changed is None else normalise(changed)

    def _crossed(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        partner = context.partner(tree)
        if partner is None:
            return None
        return normalise(cross(tree, partner, self._chooser(context)))
