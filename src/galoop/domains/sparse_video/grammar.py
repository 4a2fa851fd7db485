"""The built-in proposer of prompts: a grammar whose words are fixed or left open.

Its space is described, for readers, in :data:`SPACE`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from galoop.domains.sparse_video.prompts import (
    COLOURS,
    EXTRAS,
    LIGHTS,
    MOTIONS,
    PATTERNS,
    SHAPES,
    SIZES,
    TONES,
    parse,
    plural,
)
from galoop.errors import UsageError
from galoop.hashing import canonical_json
from galoop.proposers.grammar.engine import GrammarProposer, Move, MoveContext
from galoop.proposers.protocol import Request
from galoop.types import Candidate

SPACE = """\
The prompt grammar writes probes in the language of the video model: one or two kinds of things (one
or two of a kind, three at most), each with a colour, a shape, a size and a motion; a background
with or without a pattern; a light that is steady, flickers or moves; shadows, a mirror, a post.
Each word is either fixed, and then the same for all seeds, or left open, and then drawn for each
seed. A probe with nothing open is a plain prompt, whose examples differ in their noise alone. All
options of a word start with the same chance; nothing here refers to an approximation or to a known
slice.
"""

OPEN = "*"
"""A word that is drawn for each seed."""
MARK = "# Construction: "
SLOTS: dict[str, tuple[str, ...]] = {
    "colour": COLOURS,
    "shape": SHAPES,
    "motion": MOTIONS,
    "size": SIZES,
}
GROUND: dict[str, tuple[str, ...]] = {"tone": TONES, "pattern": PATTERNS, "light": LIGHTS}


@dataclass(frozen=True)
class OpenThing:
    """A thing whose words are words, or :data:`OPEN`."""

    colour: str = OPEN
    shape: str = OPEN
    motion: str = OPEN
    size: str = OPEN
    count: int = 1


@dataclass(frozen=True)
class OpenScene:
    """A scene whose words are words, or :data:`OPEN`."""

    things: tuple[OpenThing, ...] = (OpenThing(),)
    tone: str = OPEN
    pattern: str = ""
    light: str = ""
    extras: tuple[str, ...] = field(default=())


class PromptGrammar(GrammarProposer[OpenScene]):
    """Proposes probes of prompts.

    Parameters
    ----------
    seed : int
        Together with the requests it determines every proposal.
    """

    def moves(self) -> Mapping[str, Move[OpenScene]]:
        """The moves by name."""
        return {
            "fix a word": self._fix,
            "change a word": self._change,
            "open a word": self._open,
            "another thing": self._add,
            "one thing less": self._remove,
            "one or two": self._number,
            "light": self._light,
            "shadows, mirror or post": self._extra,
            "cross": self._cross,
        }

    def fresh(self, context: MoveContext[OpenScene]) -> OpenScene:
        """One or two things with some words fixed; most effects off."""
        rng = context.rng
        number = int(self.pick("things", ("1", "2"), context))
        things = tuple(self._thing(context) for _ in range(number))
        ground = {
            slot: self.pick(slot, options, context) if rng.random() < 0.5 else rest
            for (slot, options), rest in zip(GROUND.items(), (OPEN, "", ""), strict=True)
        }
        extras = tuple(
            extra for extra in EXTRAS if self.pick(extra, ("off", "on"), context) == "on"
        )
        return normalise(OpenScene(things, extras=extras if rng.random() < 0.5 else (), **ground))

    def _thing(self, context: MoveContext[OpenScene]) -> OpenThing:
        words = {
            slot: self.pick(slot, options, context) if context.rng.random() < 0.5 else OPEN
            for slot, options in SLOTS.items()
        }
        return OpenThing(**words, count=2 if context.rng.random() < 0.25 else 1)

    def render(self, tree: OpenScene, note: str) -> Candidate:
        """A plain prompt where nothing is open, else a program."""
        return Candidate("probe", {"probe.py": source_of(tree)}, note)

    def identity(self, tree: OpenScene) -> str:
        """Equal for equal trees."""
        return canonical_json(dataclasses.asdict(tree))

    def features(self, tree: OpenScene) -> Mapping[str, str]:
        """The choices to learn about."""
        found = {"things": str(len(tree.things))}
        for thing in tree.things:
            found.update({k: getattr(thing, k) for k in SLOTS if getattr(thing, k) != OPEN})
        found.update({k: getattr(tree, k) for k in GROUND if getattr(tree, k) != OPEN})
        found.update({extra: "on" if extra in tree.extras else "off" for extra in EXTRAS})
        return found

    def revive(self, candidate: Candidate) -> OpenScene | None:
        """The tree of a probe that a prompt grammar wrote, or of a plain prompt."""
        return recover(candidate.source) if len(candidate.files) == 1 else None

    def excluded(self, tree: OpenScene, candidate: Candidate, request: Request) -> bool:
        """Whether this very probe is frozen already."""
        return candidate.source in request.task.frozen

    # The moves.

    def _words(self, tree: OpenScene, open_ones: bool) -> list[tuple[int, str]]:
        """Places of words that are open (or are not): (thing, slot), with −1 for the scene's."""
        places = [(i, slot) for i in range(len(tree.things)) for slot in SLOTS]
        places += [(-1, slot) for slot in GROUND]
        return [place for place in places if (_get(tree, place) == OPEN) == open_ones]

    def _fix(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        places = self._words(tree, open_ones=True)
        return self._put(tree, places, context) if places else None

    def _change(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        places = self._words(tree, open_ones=False)
        return self._put(tree, places, context) if places else None

    def _put(
        self, tree: OpenScene, places: Sequence[tuple[int, str]], context: MoveContext[OpenScene]
    ) -> OpenScene | None:
        place = context.rng.choice(places)
        options = SLOTS[place[1]] if place[0] >= 0 else GROUND[place[1]]
        others = [option for option in options if option != _get(tree, place)]
        return changed(tree, _set(tree, place, self.pick(place[1], others, context)))

    def _open(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        places = self._words(tree, open_ones=False)
        return changed(tree, _set(tree, context.rng.choice(places), OPEN)) if places else None

    def _add(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        if len(tree.things) == 2:
            return None
        return changed(tree, dataclasses.replace(tree, things=(*tree.things, OpenThing())))

    def _remove(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        if len(tree.things) == 1:
            return None
        return changed(tree, dataclasses.replace(tree, things=(context.rng.choice(tree.things),)))

    def _number(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        index = context.rng.randrange(len(tree.things))
        things = list(tree.things)
        things[index] = dataclasses.replace(things[index], count=3 - things[index].count)
        return changed(tree, dataclasses.replace(tree, things=tuple(things)))

    def _light(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        others = [light for light in LIGHTS if light != tree.light]
        light = self.pick("light", others, context)
        return changed(tree, dataclasses.replace(tree, light=light))

    def _extra(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        flipped = context.rng.choice(EXTRAS)
        extras = tuple(e for e in EXTRAS if (e in tree.extras) != (e == flipped))
        return changed(tree, dataclasses.replace(tree, extras=extras))

    def _cross(self, tree: OpenScene, context: MoveContext[OpenScene]) -> OpenScene | None:
        partner = context.partner(tree)
        if partner is None:
            return None
        names = [item.name for item in dataclasses.fields(OpenScene)]
        taken = context.rng.sample(names, context.rng.randint(1, len(names) - 1))
        return changed(
            tree, dataclasses.replace(tree, **{name: getattr(partner, name) for name in taken})
        )


def _get(tree: OpenScene, place: tuple[int, str]) -> str:
    owner: object = tree if place[0] < 0 else tree.things[place[0]]
    return str(getattr(owner, place[1]))


def _set(tree: OpenScene, place: tuple[int, str], word: str) -> OpenScene:
    if place[0] < 0:
        return dataclasses.replace(tree, **{place[1]: word})  # type: ignore[arg-type]
    things = list(tree.things)
    things[place[0]] = dataclasses.replace(things[place[0]], **{place[1]: word})  # type: ignore[arg-type]
    return dataclasses.replace(tree, things=tuple(things))


def changed(before: OpenScene, after: OpenScene) -> OpenScene | None:
    """The normalised scene, or None where it is the one before."""
    after = normalise(after)
    return None if after == before else after


def normalise(tree: OpenScene) -> OpenScene:
    """The nearest scene that the language can say: colours differ, and the things fit."""
    things: list[OpenThing] = []
    for thing in tree.things[:2]:
        left = 3 - sum(other.count for other in things)
        count = min(thing.count, left)
        size = "" if count == 2 and thing.size == "large" else thing.size
        colour = thing.colour
        if colour != OPEN and colour in [other.colour for other in things]:
            colour = OPEN
        things.append(dataclasses.replace(thing, colour=colour, size=size, count=count))
    extras = tuple(extra for extra in EXTRAS if extra in tree.extras)
    return dataclasses.replace(tree, things=tuple(things), extras=extras)


def source_of(tree: OpenScene) -> str:
    """The probe: a prompt, or a program whose first line says how to rebuild the tree."""
    words = [getattr(thing, slot) for thing in tree.things for slot in SLOTS]
    words += [getattr(tree, slot) for slot in GROUND]
    if OPEN not in words:
        return prompt_of(tree) + "\n"
    colours = [thing.colour for thing in tree.things]
    left = [colour for colour in COLOURS if colour not in colours]
    lines = [MARK + json.dumps(dataclasses.asdict(tree)), "", "", "def prompt(rng):"]
    number = colours.count(OPEN)
    if number:
        lines.append(f"    colours = rng.sample({_listed(left)}, {number})")
    names = []
    for index, thing in enumerate(tree.things):
        names.append(("first", "second")[index])
        lines += _thing_lines(names[-1], thing)
    scene = "{" + "} and {".join(names) + "}"
    ground = "{tone}" if tree.tone == OPEN else tree.tone
    if tree.tone == OPEN:
        lines.append(f"    tone = rng.choice({_listed(TONES)})")
    pattern = f"{tree.pattern} " if tree.pattern not in ("", OPEN) else ""
    if tree.pattern == OPEN:
        lines.append(f"    pattern = rng.choice({_listed([f'{p} '.lstrip() for p in PATTERNS])})")
        pattern = "{pattern}"
    light = f", {tree.light}" if tree.light not in ("", OPEN) else ""
    if tree.light == OPEN:
        options = [f", {word}" if word else "" for word in LIGHTS]
        lines.append(f"    light = rng.choice({_listed(options)})")
        light = "{light}"
    effects = light + "".join(f", {extra}" for extra in tree.extras)
    lines.append(f'    return f"{scene} on a {pattern}{ground} background{effects}"')
    return "\n".join(lines) + "\n"


def _thing_lines(name: str, thing: OpenThing) -> list[str]:
    """Statements that give ``name`` the words of a thing."""
    shapes = [plural(shape) if thing.count == 2 else shape for shape in SHAPES]
    sizes = [f"{size} ".lstrip() for size in (SIZES[:2] if thing.count == 2 else SIZES)]
    shape = plural(thing.shape) if thing.count == 2 and thing.shape != OPEN else thing.shape
    size = OPEN if thing.size == OPEN else f"{thing.size} ".lstrip()
    lines, parts = [], ["two " if thing.count == 2 else "a "]
    for slot, word, options, tail in (
        ("size", size, sizes, ""),
        ("colour", thing.colour, None, " "),
        ("shape", shape, shapes, " "),
        ("motion", thing.motion, list(MOTIONS), ""),
    ):
        if word != OPEN:
            parts.append(word + tail)
            continue
        drawn = "colours.pop()" if options is None else f"rng.choice({_listed(options)})"
        lines.append(f"    {slot} = {drawn}")
        parts.append("{" + slot + "}" + tail)
    text = "".join(parts)
    return [*lines, f'    {name} = {"f" if lines else ""}"{text}"']


def _listed(words: Sequence[str]) -> str:
    return json.dumps(list(words))


def prompt_of(tree: OpenScene) -> str:
    """The prompt of a scene with nothing open."""
    things = " and ".join(
        " ".join(
            word
            for word in (
                "two" if thing.count == 2 else "a",
                thing.size,
                thing.colour,
                plural(thing.shape) if thing.count == 2 else thing.shape,
                thing.motion,
            )
            if word
        )
        for thing in tree.things
    )
    ground = f"{tree.pattern} {tree.tone}".strip()
    effects = [effect for effect in (tree.light, *tree.extras) if effect]
    return ", ".join([f"{things} on a {ground} background", *effects])


def recover(source: str) -> OpenScene | None:
    """The tree of a source that :func:`source_of` wrote and nobody changed; None otherwise."""
    if source.startswith(MARK):
        try:
            data = json.loads(source.splitlines()[0][len(MARK) :])
            things = tuple(OpenThing(**thing) for thing in data.pop("things"))
            tree = OpenScene(things, **{**data, "extras": tuple(data["extras"])})
            return tree if normalise(tree) == tree and source_of(tree) == source else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
    try:
        scene = parse(source.strip())
    except UsageError:
        return None
    things = tuple(OpenThing(t.colour, t.shape, t.motion, t.size, t.count) for t in scene.things)
    flags = (scene.shadows, scene.mirror, scene.post)
    extras = tuple(extra for extra, on in zip(EXTRAS, flags, strict=True) if on)
    return OpenScene(things, scene.tone, scene.pattern, scene.light, extras)
