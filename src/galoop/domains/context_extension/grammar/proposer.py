"""The built-in generator: searches plan programs over a broad, neutral space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from galoop.domains.context_extension.grammar import tree
from galoop.domains.context_extension.grammar.render import render, revive
from galoop.domains.context_extension.grammar.tree import Program, normalise, to_json
from galoop.hashing import content_hash
from galoop.proposers.grammar.engine import GrammarProposer, Move, MoveContext
from galoop.proposers.protocol import Proposal, Request
from galoop.types import Candidate

#: Share of fresh programs that are near and far bands and nothing else.
PLAIN = 0.7
_PARTS: Mapping[str, tuple[str, ...]] = {
    "change the near bands": ("near", "size", "local"),
    "change the far bands": ("far", "reach", "growth"),
    "change the sinks": ("sinks",),
    "change the frequencies": ("frequency", "strength", "bands"),
    "change the scale": ("scale", "power"),
    "vary by layer or head": ("vary", "by"),
}
_STEPPED = ("size", "local", "reach", "growth", "sinks", "strength", "power")

SPACE = """\
What the plan grammar can write. A program lays out near bands, then far ones:

- near: nothing, a sliding window at true distances, or chunks within which positions start anew,
  of a size from a sixteenth to three quarters of the native window, with a local reach across
  borders;
- far: true distances, one level for all, the key's place in its chunk, groups that share a
  position, squeezed distances, distances that grow slower at each doubling, or, for every other
  head, nothing;
- the largest distance that is used; first tokens in a band of their own;
- frequencies changed as by a larger RoPE base, or for the slow pairs alone, in all bands or in the
  far ones;
- a factor on the logits beyond the window: logarithmic, or constant;
- a second variant (chunks half a size later, half the size, or a level far band) for every other
  layer, every other head, or the upper half of the layers.

Seven of ten fresh programs are near and far bands alone. All options are drawn evenly at first;
what paid is drawn more often later. The space is made of what the literature on context extension
uses; no program in it was written for a known slice. Nothing in it reads a text.
"""


class PlanGrammar(GrammarProposer[Program]):
    """Proposes plan programs (artifact folders).

    Parameters
    ----------
    seed : int
    """

    _extension: float = 1.0

    def moves(self) -> Mapping[str, Move[Program]]:
        """The moves by name."""
        table: dict[str, Move[Program]] = {
            name: partial(self._changed, slots) for name, slots in _PARTS.items()
        }
        table["step a number"] = self._stepped
        table["cross"] = self._crossed
        return table

    def fresh(self, context: MoveContext[Program]) -> Program:
        """A program from nothing."""
        plain = context.rng.random() < PLAIN
        slots = (*_PARTS["change the near bands"], *_PARTS["change the far bands"])
        chosen = {slot: self._draw(slot, context) for slot in (slots if plain else tree.SPACE)}
        return normalise(Program(**chosen))

    def render(self, tree: Program, note: str) -> Candidate:
        """The artifact folder of a tree."""
        return render(tree, self._extension, note)

    def identity(self, tree: Program) -> str:
        """Equal for equal programs."""
        return content_hash(to_json(tree))

    def features(self, tree: Program) -> Mapping[str, str]:
        """The choices to learn about."""
        return {slot: repr(value) for slot, value in asdict(tree).items()}

    def revive(self, candidate: Candidate) -> Program | None:
        """A tree that some plan grammar wrote, or that of a method with a name."""
        return revive(candidate)

    def propose(self, request: Request) -> Proposal:
        """Return a program that was never proposed or evaluated before in this search."""
        self._extension = float(request.task.budget.get("extension", 1.0))
        return super().propose(request)

    def _draw(self, slot: str, context: MoveContext[Program], other_than: object = None) -> Any:
        options = [value for value in tree.SPACE[slot] if value != other_than]
        names = {repr(value): value for value in options}
        return names[self.pick(slot, list(names), context)]

    def _changed(
        self, slots: tuple[str, ...], program: Program, context: MoveContext[Program]
    ) -> Program | None:
        """Other values at one or more slots of a part, so that something changes."""
        for _ in range(8):
            first = context.rng.choice(slots)
            new = {first: self._draw(first, context, getattr(program, first))}
            for slot in slots:
                if slot != first and context.rng.random() < 0.4:
                    new[slot] = self._draw(slot, context)
            changed = normalise(replace(program, **new))
            if changed != program:
                return changed
        return None

    def _stepped(self, program: Program, context: MoveContext[Program]) -> Program | None:
        """The next larger or smaller value of a number."""
        slot = context.rng.choice(_STEPPED)
        values = tree.SPACE[slot]
        at = values.index(getattr(program, slot)) + context.rng.choice((-1, 1))
        if not 0 <= at < len(values):
            return None
        new: dict[str, Any] = {slot: values[at]}
        changed = normalise(replace(program, **new))
        return None if changed == program else changed

    def _crossed(self, program: Program, context: MoveContext[Program]) -> Program | None:
        """Each part from one of two programs."""
        partner = context.partner(program)
        if partner is None:
            return None
        new: dict[str, Any] = {}
        for slots in _PARTS.values():
            one = context.rng.choice((program, partner))
            new.update({slot: getattr(one, slot) for slot in slots})
        return normalise(Program(**new))
