"""The built-in generator: searches codec programs over a broad, neutral space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial

from galoop.domains.quantized_kv.grammar.render import render, revive
from galoop.domains.quantized_kv.grammar.tree import (
    KNOBS,
    Program,
    Value,
    normalise,
    to_json,
)
from galoop.hashing import content_hash
from galoop.proposers.grammar.engine import GrammarProposer, Move, MoveContext
from galoop.proposers.protocol import Proposal, Request
from galoop.types import Candidate

#: Share of fresh programs that differ from the plainest one in one or two knobs.
PLAIN = 0.8

SPACE = """\
What the codec grammar can write. A program keeps some tokens of each layer in 16 bits and rounds
the others; widths of codes are chosen so that the budget is filled and never passed. It has

- for keys and for values: groups along the tokens of a channel or along the channels of a token,
  their size, a symmetric or an asymmetric range, a clipped range (three fixed amounts, or the one
  with the least squared error), even levels or those of a normal distribution, groups scaled back
  to their norm, a Hadamard transform of the channels, and the mean of each channel taken off;
- keys rounded after RoPE or before it;
- how many first, last and outstanding tokens stay in 16 bits, and what outstanding means: the norm
  of the key or the value, its distance from the mean, its largest number;
- how bits are shared: between keys and values, and over the layers (evenly, to the first, the last,
  both, the middle, or to those that are hard to round).

Four of five fresh programs are plain: keys by channel and values by token with one knob changed,
each in its turn, then with two that paid. All options are drawn evenly at first; what paid is drawn
more often later. A program that asks for more than its budget keeps fewer tokens in 16 bits, and
then makes its groups larger. The space is made of what the literature on quantized caches uses; no
program in it was written for a known slice. Nothing in it reads the question or the answer.
"""


class CodecGrammar(GrammarProposer[Program]):
    """Proposes codec programs (artifact folders).

    Parameters
    ----------
    seed : int
    """

    _bits: float = 0.0

    def moves(self) -> Mapping[str, Move[Program]]:
        """The moves by name."""
        return {
            "change one knob": partial(self._changed, 1),
            "change two knobs": partial(self._changed, 2),
            "one step": self._stepped,
            "keys as values": partial(self._copied, "values", "keys"),
            "values as keys": partial(self._copied, "keys", "values"),
            "cross": self._crossed,
        }

    def fresh(self, context: MoveContext[Program]) -> Program:
        """A program from nothing."""
        if context.rng.random() >= PLAIN:
            return normalise(Program(**{s: self._draw(s, context) for s in KNOBS}))  # type: ignore[arg-type]
        plain = asdict(Program())
        unseen = [
            (slot, value)
            for slot, values in KNOBS.items()
            for value in values
            if value != plain[slot] and repr(value) not in self._told(slot)
        ]
        if unseen:
            slot, value = context.rng.choice(unseen)
            program = _with(Program(), {slot: value})
            if slot == "outliers_by":
                program = _with(program, {"outliers": 4})
            return normalise(program)
        return normalise(self._with_changes(Program(), 2, context))

    def render(self, tree: Program, note: str) -> Candidate:
        """The artifact folder of a tree."""
        return render(tree, self._bits, note)

    def identity(self, tree: Program) -> str:
        """Equal for equal programs."""
        return content_hash(to_json(tree))

    def features(self, tree: Program) -> Mapping[str, str]:
        """Every knob."""
        return {slot: repr(value) for slot, value in asdict(tree).items()}

    def revive(self, candidate: Candidate) -> Program | None:
        """A tree that some codec grammar wrote; of KIVI's own source the plainest one."""
        known = revive(candidate)
        if known is None and any("class Kivi" in text for text in candidate.files.values()):
            return Program()
        return known

    def propose(self, request: Request) -> Proposal:
        """Return a program that was never proposed or evaluated before in this search."""
        self._bits = float(request.task.budget.get("bits", 64.0))
        return super().propose(request)

    def _told(self, slot: str) -> set[str]:
        """Options of a slot that some program was evaluated with."""
        bandit = self.choices.get(slot)
        return (
            set()
            if bandit is None
            else {o for o in map(repr, KNOBS[slot]) if bandit.mean(o) != 0.5}
        )

    def _draw(self, slot: str, context: MoveContext[Program], other: Value | None = None) -> Value:
        options = {repr(v): v for v in KNOBS[slot] if other is None or v != other}
        return options[self.pick(slot, list(options), context)]

    def _with_changes(self, program: Program, count: int, context: MoveContext[Program]) -> Program:
        slots = context.rng.sample(list(KNOBS), count)
        values = asdict(program)
        return _with(program, {s: self._draw(s, context, values[s]) for s in slots})

    def _changed(self, count: int, tree: Program, context: MoveContext[Program]) -> Program | None:
        return normalise(self._with_changes(tree, count, context))

    def _stepped(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        """One ordered knob to a neighbouring value."""
        slot = context.rng.choice([s for s, v in KNOBS.items() if len(v) > 2 and s in _ORDERED])
        values = KNOBS[slot]
        at = values.index(asdict(tree)[slot]) + context.rng.choice((-1, 1))
        return normalise(_with(tree, {slot: values[at]})) if 0 <= at < len(values) else None

    def _copied(
        self, of: str, to: str, tree: Program, context: MoveContext[Program]
    ) -> Program | None:
        """Round keys as values are rounded, or the other way round, but for the axis."""
        changes = {f"{to}_{k}": v for k, v in tree.side(of).items() if k != "axis"}
        return normalise(_with(tree, changes))

    def _crossed(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        partner = context.partner(tree)
        if partner is None:
            return None
        one, other = asdict(tree), asdict(partner)
        return normalise(Program(**{s: context.rng.choice((one[s], other[s])) for s in one}))


_ORDERED = (
    "keys_group", "values_group", "keys_shrink", "values_shrink", "first", "last", "outliers",
    "lean",
)  # fmt: skip


def _with(program: Program, changes: Mapping[str, Value]) -> Program:
    return replace(program, **changes)  # type: ignore[arg-type]
