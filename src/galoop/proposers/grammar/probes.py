"""The built-in proposer of probes: a grammar that needs no key and no network.

Its space is described, for readers, in :data:`SPACE`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from galoop.proposers.grammar import foreign
from galoop.proposers.grammar import tree as space
from galoop.proposers.grammar.engine import FRESH, GrammarProposer, Move, MoveContext
from galoop.proposers.grammar.render import recover, render
from galoop.proposers.grammar.tree import Ask, Entry, Filler, Placement, Program, Value
from galoop.types import Candidate, Feedback, State

SPACE = """\
The probe grammar writes programs that hide one or several values in a long text and ask for them.
Nothing in it refers to an approximation or to a known slice. Apart from a prior for simple programs
(below), every option of a kind starts with the same chance, and only the feedback of the running
search shifts these chances. What it can say:

- Entries: plain sentences (value last, value first, owner first), records, records with several
  fields, lines of a ledger, rows of a table, points of a list, lines of a log, key-value notes,
  exchanges of a dialogue, entries of a calendar, JSON lines. 1 to 24 keys, or as many as fill the
  text; one to three values a key; zero to two outdated entries a key, marked as such.
- Keys: nouns, adjective and noun, look-alikes that share the noun or the adjective, given names,
  full names, numbered and coded things.
- Values: 2 to 8 digits, a word, two words, letters with digits, names, dates, times, amounts;
  independent, or alike (all values of an example share a stem).
- Hops: the entry of the asked key states the value, or refers to another key (up to two times).
- Filler: one sentence over and over, 2 to 12 sentences in turn or in random order, made-up
  sentences, a story, random words, facts about other things, readings, or more entries.
- Placement: the asked entry at the start, in the middle, at the end or anywhere; the other
  entries scattered, beside it, before it or after it.
- Questions: five wordings; for the value of a key, for the values of up to three keys, or for the
  key of a value. Answer prefixes: none, "Answer:", a sentence, or the words of the entry.

The prior prefers simple programs: seven of ten fresh ones are plain, which means at most three
keys, short values that are not alike, one hop, one asked key, one value a key, no outdated
entries, and an answer prefix that a reader can continue; the others draw from everything (a
quarter of them ask for the key of a value). Where the reference itself fails on a parent, moves
that make the example easier get more weight, because a probe that the reference cannot answer
proves nothing; kinds that frozen slices already use are half as likely. Words come from the
wonderwords package. What it cannot say: reasoning other than following references, arithmetic,
code, translation, other languages than English.
"""

FEWEST_TOKENS_AN_ENTRY = 6
PLAIN = 0.7
REVERSED = 0.25
FEW = (1, 1, 1, 2, 2, 3)
SHORT = (2, 3, 4, 5)
CONTINUED = ("as in the entry", "sentence")
HOPS = ("1", "2", "3")
ASKED = (1, 1, 1, 2, 3)
VALUES_PER_KEY = (1, 1, 1, 2, 3)
STALE = (0, 0, 1, 2)
EASIER = "make it easier"
EASY_MOVES = (EASIER, "fewer entries", "shorter value", "answer prefix")
LOW_REFERENCE = 0.5
ENOUGH_REFERENCE = 0.9


class ProbeGrammar(GrammarProposer[Program]):
    """Writes and mutates readable probe programs.

    Parameters
    ----------
    seed : int
        Together with the requests it determines every proposal.
    """

    def moves(self) -> Mapping[str, Move[Program]]:
        """One move a node, sizes up and down, an easier example, two moves at once, a cross."""
        return {
            "kind of value": self._change_value,
            "kind of keys": self._change_keys,
            "form of entries": self._change_form,
            "kind of filler": self._change_filler,
            "placement": self._change_placement,
            "question": self._change_question,
            "answer prefix": self._change_prefix,
            "direction of the question": self._change_direction,
            "number of asked keys": self._change_asked,
            "values a key": self._change_values,
            "outdated entries": self._change_stale,
            "hops": self._change_hops,
            "likeness of values": self._change_likeness,
            "more entries": self._more_entries,
            "fewer entries": self._fewer_entries,
            "longer value": self._longer_value,
            "shorter value": self._shorter_value,
            EASIER: self._easier,
            "two changes": self._two_changes,
            "cross": self._cross,
        }

    # The grammar.

    def fresh(self, context: MoveContext[Program]) -> Program:
        """A new program; kinds follow what was learned, sizes are drawn from the prior."""
        rng = context.rng

        def pick(slot: str, options: Sequence[str]) -> str:
            return self.pick(slot, options, context)

        plain = rng.random() < PLAIN
        reverse = not plain and rng.random() < REVERSED
        prefixes = CONTINUED if plain else space.PREFIXES
        program = Program(
            value=Value(
                pick("value", space.VALUE_KINDS),
                rng.choice(SHORT if plain else space.VALUE_SIZES),
                not plain and rng.random() < 0.5,
            ),
            key=pick("key", space.KEY_KINDS),
            entry=Entry(
                pick("form", space.FORMS),
                1 if plain else rng.choice(VALUES_PER_KEY),
                0 if plain else rng.choice(STALE),
                rng.choice(space.STATUSES),
            ),
            count=rng.choice(FEW if plain else space.COUNTS),
            hops=int(pick("hops", HOPS[:1] if plain else HOPS)),
            filler=Filler(pick("filler", space.FILLERS), rng.choice(space.FILLER_SENTENCES)),
            placement=Placement(pick("asked spot", space.SPOTS), pick("other spots", space.OTHERS)),
            ask=Ask(
                rng.choice(space.QUESTIONS),
                pick("prefix", prefixes),
                space.DIRECTIONS[1 if reverse else 0],
                1 if plain else rng.choice(ASKED),
            ),
            attribute=rng.randrange(4),
            words=rng.randrange(10**6),
        )
        return space.normalise(program)

    def render(self, tree: Program, note: str) -> Candidate:
        """The program as a one-file candidate."""
        return Candidate("probe", {"probe.py": render(tree)}, note)

    def identity(self, tree: Program) -> str:
        """Programs that differ in their words only count as the same."""
        return space.identity(tree)

    def features(self, tree: Program) -> Mapping[str, str]:
        """The kinds in a program."""
        return {
            "value": tree.value.kind,
            "key": tree.key,
            "form": tree.entry.form,
            "filler": tree.filler.kind,
            "asked spot": tree.placement.asked,
            "other spots": tree.placement.others,
            "prefix": tree.ask.prefix,
            "hops": str(tree.hops),
        }

    def revive(self, candidate: Candidate) -> Program | None:
        """The tree of a program that this grammar wrote in another search."""
        return recover(candidate.source) if len(candidate.files) == 1 else None

    def edit(self, candidate: Candidate, context: MoveContext[Program]) -> Candidate | None:
        """Change constants, lists and words in a program that somebody else wrote."""
        if len(candidate.files) != 1:
            return None
        ((name, source),) = candidate.files.items()
        edited = foreign.mutate(source, context.rng)
        if edited is None:
            return None
        return Candidate("probe", {name: edited.source}, edited.note)

    def excluded(self, tree: Program, candidate: Candidate, request: Any) -> bool:
        """Frozen programs, whatever their words, and entries too few to fill the text."""
        if tree.filler.kind == "more entries":
            entries = tree.count * (1 + tree.entry.stale)
            if entries * FEWEST_TOKENS_AN_ENTRY < 0.55 * request.task.length:
                return True
        mine = space.identity(tree)
        return any(space.identity(old) == mine for old in self._frozen(request.task.frozen))

    def paid(self, child: Feedback, parent: Feedback) -> bool:
        """The score rose; or, where it stays at the floor, the reference came nearer to valid."""
        if child.score > parent.score + 1e-9:
            return True
        floor = child.score == parent.score == 0.0
        return floor and reference_of(child) > reference_of(parent) + 1e-9

    def worth(self, feedback: Feedback, best: float) -> float:
        """A quarter for what the reference can answer, the rest for coming near the best score.

        The square sets the best apart from the middling, so that the choices sharpen.
        """
        return 0.25 * min(1.0, reference_of(feedback)) + 0.75 * super().worth(feedback, best) ** 2

    def choice_weights(self, slot: str, context: MoveContext[Program]) -> Mapping[str, float]:
        """Kinds that frozen probes already use are half as likely, so that slices differ."""
        weights: dict[str, float] = {}
        if slot in ("form", "filler", "value", "key", "asked spot", "other spots"):
            for tree in self._frozen(context.request.task.frozen):
                weights[self.features(tree)[slot]] = 0.5
        return weights

    def move_weights(self, context: MoveContext[Program]) -> Mapping[str, float]:
        """What the reference cannot answer has to become easier first."""
        parent = context.request.parent
        if parent is None:
            return {}
        if parent.feedback.state is not State.SCORED and not reference_of(parent.feedback):
            return {FRESH: 2.0}  # rejected before anybody answered
        reference = reference_of(parent.feedback)
        if reference >= ENOUGH_REFERENCE:
            return {EASIER: 0.25}
        factor = 4.0 if reference < LOW_REFERENCE else 2.0
        return dict.fromkeys(EASY_MOVES, factor) | {FRESH: factor / 2}

    def _frozen(self, sources: Sequence[str]) -> list[Program]:
        trees = []
        for source in sources:
            if source not in self._frozen_trees:
                self._frozen_trees[source] = recover(source)
            tree = self._frozen_trees[source]
            if tree is not None:
                trees.append(tree)
        return trees

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._frozen_trees: dict[str, Program | None] = {}

    # The moves. Each returns a different program, or None where it does not apply.

    def _other(
        self, slot: str, options: Sequence[str], now: str, context: MoveContext[Program]
    ) -> str:
        return self.pick(slot, [option for option in options if option != now], context)

    def _change_value(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        kind = self._other("value", space.VALUE_KINDS, tree.value.kind, context)
        size = context.rng.choice(space.VALUE_SIZES)
        return _changed(tree, value=Value(kind, size, tree.value.alike))

    def _change_keys(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        return _changed(tree, key=self._other("key", space.KEY_KINDS, tree.key, context))

    def _change_form(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        form = self._other("form", space.FORMS, tree.entry.form, context)
        return _changed(tree, entry=dataclasses.replace(tree.entry, form=form))

    def _change_filler(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        sentences = context.rng.choice(space.FILLER_SENTENCES)
        if tree.filler.kind in ("rotation", "shuffled sentences") and context.rng.random() < 0.3:
            return _changed(tree, filler=Filler(tree.filler.kind, sentences))
        kind = self._other("filler", space.FILLERS, tree.filler.kind, context)
        count = tree.count
        if tree.filler.kind == "more entries":
            count = context.rng.choice(space.COUNTS)
        return _changed(tree, filler=Filler(kind, sentences), count=count)

    def _change_placement(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        placement = tree.placement
        if context.rng.random() < 0.5:
            asked = self._other("asked spot", space.SPOTS, placement.asked, context)
            return _changed(tree, placement=Placement(asked, placement.others))
        others = self._other("other spots", space.OTHERS, placement.others, context)
        return _changed(tree, placement=Placement(placement.asked, others))

    def _change_question(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        question = context.rng.choice([q for q in space.QUESTIONS if q != tree.ask.question])
        return _changed(tree, ask=dataclasses.replace(tree.ask, question=question))

    def _change_prefix(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        prefix = self._other("prefix", space.PREFIXES, tree.ask.prefix, context)
        return _changed(tree, ask=dataclasses.replace(tree.ask, prefix=prefix))

    def _change_direction(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        direction = "key" if tree.ask.direction == "value" else "value"
        return _changed(tree, ask=dataclasses.replace(tree.ask, direction=direction))

    def _change_asked(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        keys = context.rng.choice([n for n in sorted(set(ASKED)) if n != tree.ask.keys])
        return _changed(tree, ask=dataclasses.replace(tree.ask, keys=keys), hops=1)

    def _change_values(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        values = context.rng.choice(
            [n for n in sorted(set(VALUES_PER_KEY)) if n != tree.entry.values]
        )
        ask = dataclasses.replace(tree.ask, keys=1)
        return _changed(tree, entry=dataclasses.replace(tree.entry, values=values), ask=ask, hops=1)

    def _change_stale(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        stale = context.rng.choice([n for n in sorted(set(STALE)) if n != tree.entry.stale])
        status = context.rng.choice(space.STATUSES)
        return _changed(tree, entry=dataclasses.replace(tree.entry, stale=stale, status=status))

    def _change_hops(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        hops = int(self._other("hops", sorted(set(HOPS)), str(tree.hops), context))
        ask = dataclasses.replace(tree.ask, direction="value")
        return _changed(tree, hops=hops, ask=ask, count=max(tree.count, hops))

    def _change_likeness(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        return _changed(tree, value=dataclasses.replace(tree.value, alike=not tree.value.alike))

    def _more_entries(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        return _changed(tree, count=_step(space.COUNTS, tree.count, +1, context))

    def _fewer_entries(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        return _changed(tree, count=_step(space.COUNTS, tree.count, -1, context))

    def _longer_value(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        size = _step(space.VALUE_SIZES, tree.value.size, +1, context)
        return _changed(tree, value=dataclasses.replace(tree.value, size=size))

    def _shorter_value(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        size = _step(space.VALUE_SIZES, tree.value.size, -1, context)
        return _changed(tree, value=dataclasses.replace(tree.value, size=size))

    def _easier(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        """One step towards an example that a small reader can answer."""
        entry, ask = tree.entry, tree.ask
        steps: list[dict[str, Any]] = []
        if tree.hops > 1:
            steps.append({"hops": tree.hops - 1})
        if ask.keys > 1:
            steps.append({"ask": dataclasses.replace(ask, keys=ask.keys - 1)})
        if entry.values > 1:
            steps.append({"entry": dataclasses.replace(entry, values=entry.values - 1)})
        if entry.stale:
            steps.append({"entry": dataclasses.replace(entry, stale=entry.stale - 1)})
        if ask.direction == "key":
            steps.append({"ask": dataclasses.replace(ask, direction="value")})
        if ask.prefix in ("none", "label"):
            for prefix in ("sentence", "as in the entry"):
                steps.append({"ask": dataclasses.replace(ask, prefix=prefix)})
        if tree.value.alike:
            steps.append({"value": dataclasses.replace(tree.value, alike=False)})
        if tree.count > 2 and tree.filler.kind != "more entries":
            steps.append({"count": tree.count // 2})
        if tree.value.size > space.VALUE_SIZES[0]:
            steps.append({"value": dataclasses.replace(tree.value, size=tree.value.size - 1)})
        return _changed(tree, **context.rng.choice(steps)) if steps else None

    def _two_changes(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        singles = {k: v for k, v in self.moves().items() if k not in ("two changes", "cross")}
        changed: Program | None = tree
        for _ in range(2):
            name = self.move_bandit.choose(context.rng, list(singles), self.move_weights(context))
            changed = singles[name](changed, context) if changed is not None else None
        return None if changed == tree else changed

    def _cross(self, tree: Program, context: MoveContext[Program]) -> Program | None:
        """Some nodes of this program, the others of another evaluated one."""
        partner = context.partner(tree)
        if partner is None:
            return None
        names = [item.name for item in dataclasses.fields(Program) if item.name != "words"]
        taken = context.rng.sample(names, context.rng.randint(1, len(names) - 1))
        return _changed(tree, **{name: getattr(partner, name) for name in taken})


def reference_of(feedback: Feedback) -> float:
    """The accuracy of the reference; 0 where none was measured."""
    return feedback.objectives.get("reference_accuracy", 0.0)


def _changed(tree: Program, **changes: Any) -> Program | None:
    """The tree with these fields, or None if that is the same program."""
    changed = space.normalise(dataclasses.replace(tree, **changes))
    return None if changed == tree else changed


def _step(options: Sequence[int], now: int, direction: int, context: MoveContext[Program]) -> int:
    """One or two options up or down from ``now``."""
    nearest = min(range(len(options)), key=lambda i: abs(options[i] - now))
    index = nearest + direction * context.rng.randint(1, 2)
    return options[min(max(index, 0), len(options) - 1)]
