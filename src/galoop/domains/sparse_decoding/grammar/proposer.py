"""The built-in generator: searches selector programs over a broad, neutral space."""

from __future__ import annotations

from collections.abc import Mapping

from galoop.domains.sparse_decoding.grammar.moves import (
    MOVES,
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
)
from galoop.proposers.grammar.engine import MoveContext
from galoop.proposers.grammar.signals.search import Language, SignalGrammar
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


class SelectorGrammar(SignalGrammar[Program]):
    """Proposes selector programs (artifact folders).

    Parameters
    ----------
    seed : int
    """

    language = Language(MOVES, cross, normalise, revive, wrappable)
    _budget: Mapping[str, float] = {"density": 1.0}

    def fresh(self, context: MoveContext[Program]) -> Program:
        """A program from nothing; the selector it started from may have a share of the budget."""
        choose = self.chooser(context)
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

    def features(self, tree: Program) -> Mapping[str, str]:
        """The choices to learn about. Presence of a signal is a slot of its own."""
        found = {
            **super().features(tree),
            "group": repr(tree.group),
            "run": repr(tree.run),
            "sink": repr(tree.sink),
            "recent": repr(tree.recent),
        }
        if tree.base:
            found["fraction"] = repr(tree.fraction)
        return found

    def excluded(self, tree: Program, candidate: Candidate, request: Request) -> bool:
        """Whether its index would be over the budget."""
        return index_fraction(tree) > self._budget.get("index_fraction", 2.0)

    def propose(self, request: Request) -> Proposal:
        """Return a program that was never proposed or evaluated before in this search."""
        self._budget = {"density": 1.0, **request.task.budget}
        return super().propose(request)
