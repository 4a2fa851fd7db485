"""The language of the small video model: scenes, and the sentences that describe them.

    prompt     = things, " on a ", [pattern, " "], tone, " background", {", ", effect} ;
    things     = thing, [" and ", thing] ;
    thing      = ("a" | "two"), " ", [size, " "], colour, " ", shape, " ", motion ;
    size       = "small" | "large" ;
    effect     = light | "with shadows" | "above a mirror" | "behind a post" ;

Each kind of effect occurs at most once, in that order; a scene has exactly one sentence and a
sentence one scene, so that the content of a clip is known from its prompt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from galoop.errors import UsageError
from galoop.hashing import derive_seed

COLOURS: tuple[str, ...] = ("red", "yellow", "green", "cyan", "blue", "magenta")
"""Six hues, 60° apart."""
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "cross")
SIZES: tuple[str, ...] = ("small", "", "large")
MOTIONS: tuple[str, ...] = (
    "resting",
    "moving left",
    "moving right",
    "moving up",
    "moving down",
    "circling",
    "growing",
    "shrinking",
)
TONES: tuple[str, ...] = ("dark", "gray", "brown", "navy")
PATTERNS: tuple[str, ...] = ("", "striped", "checked", "graded")
LIGHTS: tuple[str, ...] = ("", "flickering light", "light moving left", "light moving right")
EXTRAS: tuple[str, ...] = ("with shadows", "above a mirror", "behind a post")

MOST_WORDS = 36
"""Length of the model's prompt in words, commas counted; the longest sentence has 33."""


@dataclass(frozen=True)
class Thing:
    """One shape, or two alike that move together.

    Attributes
    ----------
    colour, shape, size, motion : str
        Words of the language; the empty size is the middle one.
    count : int
        1 or 2. Two large ones do not fit.
    """

    colour: str
    shape: str
    motion: str = "resting"
    size: str = ""
    count: int = 1

    def __str__(self) -> str:
        number = "two" if self.count == 2 else "a"
        shape = plural(self.shape) if self.count == 2 else self.shape
        return " ".join(x for x in (number, self.size, self.colour, shape, self.motion) if x)


@dataclass(frozen=True)
class Scene:
    """What a clip shows.

    Attributes
    ----------
    things : tuple of Thing
        One or two; the first is in front. Their colours differ.
    tone, pattern : str
        The background.
    light : str
        Empty: steady.
    shadows, mirror, post : bool
        Shadows on the background; a mirror along the lower edge; a gray post in front.
    """

    things: tuple[Thing, ...]
    tone: str = "gray"
    pattern: str = ""
    light: str = ""
    shadows: bool = False
    mirror: bool = False
    post: bool = False

    def __str__(self) -> str:
        ground = f"{self.pattern} {self.tone}".strip()
        flags = (self.shadows, self.mirror, self.post)
        effects = [self.light, *(word for word, on in zip(EXTRAS, flags, strict=True) if on)]
        parts = [" and ".join(map(str, self.things)) + f" on a {ground} background"]
        return ", ".join(parts + [effect for effect in effects if effect])


def plural(shape: str) -> str:
    """The plural of a shape's word."""
    return shape + ("es" if shape == "cross" else "s")


def vocabulary() -> tuple[str, ...]:
    """Every word of the language, sorted; the comma is a word."""
    text = " ".join((*COLOURS, *SHAPES, *map(plural, SHAPES), *SIZES, *MOTIONS, *TONES, *PATTERNS,
                     *LIGHTS, *EXTRAS, "a two and on background"))  # fmt: skip
    return tuple(sorted({*text.split(), ","}))


def words_of(prompt: str) -> list[str]:
    """A prompt as words, commas apart."""
    return prompt.replace(",", " , ").split()


def problem_of(scene: Scene) -> str:
    """Why a scene cannot be shown; empty when it can."""
    if not 1 <= len(scene.things) <= 2:
        return "a scene has one or two kinds of things"
    if len({thing.colour for thing in scene.things}) < len(scene.things):
        return "the things of a scene have different colours"
    for thing in scene.things:
        if thing.count == 2 and thing.size == "large":
            return "two large things do not fit"
    if sum(thing.count for thing in scene.things) > 3:
        return "a scene has at most three things"
    return ""


def parse(prompt: str) -> Scene:
    """The scene of a prompt.

    Parameters
    ----------
    prompt : str

    Raises
    ------
    UsageError
        Where it is no sentence of the language: which words, and what was expected there.
    """
    head, *effects = prompt.split(", ")
    described, on, ground = head.partition(" on a ")
    if not on:
        raise _wrong(prompt, "it has no ' on a … background'")
    things = tuple(_parse_thing(part, prompt) for part in described.split(" and "))
    *pattern, tone, last = ground.split(" ") if ground.count(" ") else ["", ground, ""]
    found = pattern[0] if pattern else ""
    if last != "background" or tone not in TONES or len(pattern) > 1 or found not in PATTERNS:
        raise _wrong(prompt, f"{ground!r} is no background: [{_or(PATTERNS)}] {_or(TONES)}")
    light = effects.pop(0) if effects and effects[0] in LIGHTS and effects[0] else ""
    for effect in effects:
        if effect not in EXTRAS:
            raise _wrong(prompt, f"{effect!r} is no effect: {_or((*LIGHTS, *EXTRAS))}")
    scene = Scene(things, tone, found, light, *(word in effects for word in EXTRAS))
    problem = problem_of(scene)
    if problem:
        raise _wrong(prompt, problem)
    if str(scene) != prompt:
        raise _wrong(prompt, f"its parts are out of order or repeated; write {str(scene)!r}")
    return scene


def _parse_thing(text: str, prompt: str) -> Thing:
    words = text.split(" ")
    count = {"a": 1, "two": 2}.get(words[0])
    size = words[1] if len(words) > 1 and words[1] in SIZES and words[1] else ""
    rest = words[2:] if size else words[1:]
    if count is None or len(rest) < 3:
        raise _wrong(prompt, f"{text!r} is no thing: (a | two) [size] colour shape motion")
    shapes = {(plural(shape) if count == 2 else shape): shape for shape in SHAPES}
    colour, shape, motion = rest[0], rest[1], " ".join(rest[2:])
    if colour not in COLOURS:
        raise _wrong(prompt, f"{colour!r} is no colour: {_or(COLOURS)}")
    if shape not in shapes:
        raise _wrong(prompt, f"{shape!r} is no shape: {_or(tuple(shapes))}")
    if motion not in MOTIONS:
        raise _wrong(prompt, f"{motion!r} is no motion: {_or(MOTIONS)}")
    return Thing(colour, shapes[shape], motion, size, count)


def _or(options: tuple[str, ...]) -> str:
    return " | ".join(option for option in options if option)


def _wrong(prompt: str, why: str) -> UsageError:
    return UsageError(f"not a prompt of the model's language: {prompt[:200]!r}: {why}")


def sample_thing(rng: random.Random, colours: tuple[str, ...] = COLOURS, most: int = 2) -> Thing:
    """A thing drawn evenly; one in four is two, where two fit."""
    count = 2 if most >= 2 and rng.random() < 0.25 else 1
    sizes = SIZES if count == 1 else SIZES[:2]
    return Thing(rng.choice(colours), rng.choice(SHAPES), rng.choice(MOTIONS), rng.choice(sizes),
                 count)  # fmt: skip


def sample_scene(rng: random.Random, two_kinds: float = 0.35, effects: float = 0.2) -> Scene:
    """A scene drawn from the language.

    Parameters
    ----------
    rng : random.Random
    two_kinds : float
        The share of scenes with two kinds of things.
    effects : float
        The chance of each of: a light, shadows, a mirror, a post.
    """
    first = sample_thing(rng)
    things = [first]
    if rng.random() < two_kinds:
        others = tuple(colour for colour in COLOURS if colour != first.colour)
        things.append(sample_thing(rng, others, 3 - first.count))
    light = rng.choice(LIGHTS[1:]) if rng.random() < effects else ""
    pattern = rng.choice(PATTERNS[1:]) if rng.random() < 0.4 else ""
    flags = [rng.random() < effects for _ in EXTRAS]
    return Scene(tuple(things), rng.choice(TONES), pattern, light, *flags)


def held_out(scene: Scene) -> bool:
    """Whether training leaves this scene out: one in ten (colour, shape, motion) combinations."""
    return any(
        derive_seed("held out", thing.colour, thing.shape, thing.motion) % 10 == 0
        for thing in scene.things
    )


def ordinary_prompts(n: int, seed: int, *, unseen: bool = False) -> list[str]:
    """``n`` different prompts drawn from the language as training draws them.

    Parameters
    ----------
    n : int
    seed : int
    unseen : bool
        Only combinations that training leaves out, instead of only those it has.
    """
    rng = random.Random(derive_seed("ordinary prompts", seed, unseen))
    found: dict[str, None] = {}
    while len(found) < n:
        scene = sample_scene(rng)
        if held_out(scene) == unseen:
            found.setdefault(str(scene))
    return list(found)
