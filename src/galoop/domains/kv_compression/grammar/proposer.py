"""The built-in generator: searches press programs over a broad, neutral space."""

from __future__ import annotations

from collections.abc import Mapping

from galoop.domains.kv_compression.grammar.moves import (
    MOVES,
    cross,
    new_program,
    plain_program,
    signal_names,
)
from galoop.domains.kv_compression.grammar.render import render, revive, wrappable
from galoop.domains.kv_compression.grammar.tree import (
    BASE,
    Program,
    Signal,
    normalise,
)
from galoop.proposers.grammar.engine import MoveContext
from galoop.proposers.grammar.signals.search import Language, SignalGrammar
from galoop.proposers.protocol import Proposal, Request
from galoop.types import Candidate

#: Share of fresh programs that are plain.
PLAIN = 0.8
#: Share of plain ones in which a signal stands beside the press that the search started from: a
#: repair that keeps what it repairs is likelier to keep what that was good at.
BESIDE = 0.75

SPACE = """\
What the press grammar can write. A program scores the tokens of the context and keeps the highest,
exactly as many as the budget allows. It has

- one to four signals: distinctiveness (KeyDiff's), novelty against all, earlier or later tokens,
  ridge leverage, norms, norm of the output projection, attention received from later tokens
  (H2O's), from the last window (SnapKV's), within chunks (Compactor's), expected from future
  queries, from the context's own queries as if it came again (after KVzip), surprise against the
  neighbourhood, LagKV's, position; on keys before or after RoPE, values, both, or hidden states;
  and the score of the press that the search started from;
- for each signal a sign, a transform (none, z-score, rank, softmax, log) and a pooling over
  neighbours;
- a combination: weighted sum, product, maximum, reciprocal ranks, interleaving, two stages;
- a pooling of the combined score, a grain (tokens, runs, a quota for each chunk, or a greedy choice
  that avoids repetition) and guarded first and last positions;
- a way to share the budget: every head its own, one choice for the heads of a layer, heads that
  compete, all layers that compete, one choice for all layers, or budgets that change with depth.

Four of five fresh programs are plain: each signal in its turn, alone or beside the score of the
press that the search started from, then pairs of signals, with the rest as simple as it can be. All
options are drawn evenly at first; what paid is drawn more often
later. The space is made of
what the literature on KV-cache compression uses; no program in it was written for a known slice.
Nothing in it reads the question or the answer: the press runs before the question is seen.
"""


class PressGrammar(SignalGrammar[Program]):
    """Proposes press programs (artifact folders).

    Parameters
    ----------
    seed : int
    """

    language = Language(MOVES, cross, normalise, revive, wrappable)
    _ratio: float = 0.0

    def fresh(self, context: MoveContext[Program]) -> Program:
        """A program from nothing; the score of the press it started from may be a part."""
        choose = self.chooser(context)
        if context.rng.random() >= PLAIN:
            return new_program(choose)
        # Each signal has its turn, alone or beside the press that the search started from, before
        # any comes again; then pairs of what paid.
        unseen = [n for n in signal_names(choose) if n != BASE and f"use {n}" not in self.choices]
        if unseen:
            beside = [BASE] if choose.base and context.rng.random() < BESIDE else []
            return plain_program(choose, [*beside, context.rng.choice(unseen)])
        first = choose.text("signal", signal_names(choose))
        rest = [n for n in signal_names(choose) if n != first]
        return plain_program(choose, [first, choose.text("signal", rest)])

    def render(self, tree: Program, note: str) -> Candidate:
        """The artifact folder of a tree."""
        return render(tree, self._ratio, note)

    def features(self, tree: Program) -> Mapping[str, str]:
        """The choices to learn about. Presence of a signal is a slot of its own."""
        found = {
            **super().features(tree),
            "count": repr(len(tree.signals)),
            "grain": repr(tree.grain),
            "scope": repr(tree.scope),
            "first": repr(tree.first),
            "last": repr(tree.last),
        }
        if tree.pool != "none":
            found["width"] = repr(tree.width)
        return found

    def revive(self, candidate: Candidate) -> Program | None:
        """A tree that some press grammar wrote, or a one-file press wrapped as the only signal."""
        known = revive(candidate)
        if known is not None:
            return known
        base = wrappable(candidate)
        if not base:
            return None
        plain = Signal(BASE, transform="none")
        return normalise(Program(signals=(plain,), first=0, last=0, base=base))

    def propose(self, request: Request) -> Proposal:
        """Return a program that was never proposed or evaluated before in this search."""
        self._ratio = float(request.task.budget.get("compression_ratio", 0.0))
        return super().propose(request)
