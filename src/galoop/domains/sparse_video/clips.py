"""Render a scene: clips whose content is known by construction.

Coordinates are pixels, x to the right and y down. Everything is drawn with 3 × 3 samples a pixel,
then lit; light multiplies, so that hue and shape survive it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galoop.domains.sparse_video.prompts import COLOURS, Scene, Thing

Array = NDArray[Any]

FRAMES, HEIGHT, WIDTH = 8, 24, 24
SAMPLES = 3
MIRROR_ROWS = 5
"""Rows of the mirror along the lower edge."""
POST = (11, 13)
"""Columns of the post, which stands in front of everything."""
RADIUS = {"small": 3.0, "": 4.0, "large": 5.5}
SQUARE, CROSS = 0.89, 0.36
"""Half a square's side and half an arm's width of the cross, in radii."""
TRAVEL, ORBIT = 9.0, 3.5
"""Pixels that a moving thing covers in a clip, and the radius of a circling one's path."""
SWELL = (0.55, 1.15)
_GAP, _MARGIN, _TRIES = 1.5, 0.25, 24

TONES: dict[str, tuple[float, float, float]] = {
    "dark": (0.10, 0.10, 0.12),
    "gray": (0.36, 0.36, 0.36),
    "brown": (0.36, 0.27, 0.20),
    "navy": (0.14, 0.17, 0.32),
}
_POST_COLOUR = (0.55, 0.55, 0.55)


def rgb_of(colour: str) -> tuple[float, float, float]:
    """A colour of the language: full hue at value 0.95, chroma 0.9."""
    index = COLOURS.index(colour)
    on = {0: "r", 1: "rg", 2: "g", 3: "gb", 4: "b", 5: "rb"}[index]
    red, green, blue = (0.95 if channel in on else 0.05 for channel in "rgb")
    return red, green, blue


@dataclass(frozen=True)
class Body:
    """One drawn shape: where it is and how large, frame by frame.

    Attributes
    ----------
    colour, shape : str
    path : array of float
        [F, 2], centres (x, y).
    radius : array of float
        [F].
    """

    colour: str
    shape: str
    path: Array
    radius: Array


@dataclass(frozen=True)
class Clip:
    """A rendered clip and what is in it.

    Attributes
    ----------
    scene : Scene
    frames : array of float32
        [F, H, W, 3] in [0, 1].
    bodies : tuple of Body
        From front to back.
    """

    scene: Scene
    frames: Array
    bodies: tuple[Body, ...]


def coverage(shape: str, x: float, y: float, radius: float, samples: int = SAMPLES) -> Array:
    """The share of each pixel that a shape covers: [H, W] in [0, 1]."""
    ys = (np.arange(HEIGHT * samples) + 0.5) / samples - y
    xs = (np.arange(WIDTH * samples) + 0.5) / samples - x
    v, u = ys[:, None] / radius, xs[None, :] / radius
    if shape == "circle":
        inside = u * u + v * v <= 1.0
    elif shape == "square":
        inside = np.maximum(np.abs(u), np.abs(v)) <= SQUARE
    elif shape == "triangle":
        inside = (v <= 1.0) & (2.0 * np.abs(u) <= v + 1.0)
    else:
        arm = np.minimum(np.abs(u), np.abs(v)) <= CROSS
        inside = arm & (np.maximum(np.abs(u), np.abs(v)) <= 1.0)
    boxes = inside.reshape(HEIGHT, samples, WIDTH, samples)
    return boxes.mean(axis=(1, 3))


def render(scene: Scene, seed: int) -> Clip:
    """Draw a scene. Where things stand, phases and flicker follow from the seed.

    Parameters
    ----------
    scene : Scene
    seed : int

    Returns
    -------
    Clip
    """
    rng = random.Random(f"clip {seed} {scene}")
    bodies = place(scene, rng)
    masks = np.stack([_masks(body) for body in bodies])  # [N, F, H, W]
    ground = _background(scene, rng)
    centre = _light_path(scene)
    frames = np.empty((FRAMES, HEIGHT, WIDTH, 3))
    for index in range(FRAMES):
        frame = ground.copy()
        if scene.shadows:
            frame *= _shadow(bodies, index, None if centre is None else centre[index])[..., None]
        for body, mask in zip(reversed(bodies), masks[::-1, index], strict=True):
            frame += mask[..., None] * (np.array(rgb_of(body.colour)) - frame)
        if scene.mirror:
            edge = HEIGHT - MIRROR_ROWS
            above = frame[edge - MIRROR_ROWS : edge][::-1]
            frame[edge:] = 0.65 * frame[edge:] + 0.3 * above
        if scene.post:
            frame[:, POST[0] : POST[1]] = _POST_COLOUR
        frames[index] = frame
    frames *= _light(scene, centre, rng)[..., None]
    return Clip(scene, np.clip(frames, 0.0, 1.0).astype(np.float32), bodies)


def place(scene: Scene, rng: random.Random) -> tuple[Body, ...]:
    """Bodies of a scene, inside the frame throughout.

    Of some random arrangements the first is taken in which every body is at least 60% visible in
    three quarters of the frames; things pass behind one another, but nothing is never seen.
    """
    best: tuple[float, tuple[Body, ...]] | None = None
    for _ in range(_TRIES):
        bodies = tuple(body for thing in scene.things for body in _bodies(thing, scene, rng))
        seen = _seen(bodies, scene)
        if best is None or seen > best[0]:
            best = (seen, bodies)
        if seen >= 0.6:
            break
    assert best is not None
    return best[1]


def _seen(bodies: tuple[Body, ...], scene: Scene) -> float:
    """The least, over bodies, of the visible share in their third-worst frame."""
    if len(bodies) == 1 and not scene.post:
        return 1.0
    hidden = np.zeros((FRAMES, HEIGHT, WIDTH))
    if scene.post:
        hidden[:, :, POST[0] : POST[1]] = 1.0
    worst = 1.0
    for body in bodies:
        mask = _masks(body, 1)
        shares = (mask * (1 - hidden)).sum((1, 2)) / np.maximum(mask.sum((1, 2)), 1e-9)
        worst = min(worst, float(np.sort(shares)[2]))
        hidden = np.maximum(hidden, mask)
    return worst


def _masks(body: Body, samples: int = SAMPLES) -> Array:
    return np.stack(
        [
            coverage(body.shape, x, y, r, samples)
            for (x, y), r in zip(body.path, body.radius, strict=True)
        ]
    )


def _bodies(thing: Thing, scene: Scene, rng: random.Random) -> list[Body]:
    """The bodies of one thing at a random place."""
    size = RADIUS[thing.size] * (0.94 if thing.count == 2 else 1.0)
    time = np.linspace(0.0, 1.0, FRAMES)
    swell = {"growing": SWELL, "shrinking": SWELL[::-1]}.get(thing.motion, (1.0, 1.0))
    radius = size * (swell[0] + (swell[1] - swell[0]) * time)
    apart = _offsets(thing, float(radius.max()), scene, rng)
    room = np.array([WIDTH, HEIGHT - MIRROR_ROWS if scene.mirror else HEIGHT], float)
    room -= 2 * _MARGIN + 2 * radius.max() + np.abs(apart).max(0) * 2
    path = _path(thing.motion, time, np.maximum(room, 0.0), rng)
    low, high = path.min(0), path.max(0)
    free = np.maximum(room - (high - low), 0.0)
    start = np.array([rng.random(), rng.random()]) * free
    path = path - low + start + _MARGIN + radius.max() + np.abs(apart).max(0)
    return [Body(thing.colour, thing.shape, path + offset, radius) for offset in apart]


def _offsets(thing: Thing, radius: float, scene: Scene, rng: random.Random) -> Array:
    """Where the bodies of a thing stand around its centre: across their way, or side by side."""
    if thing.count == 1:
        return np.zeros((1, 2))
    beside = thing.motion not in ("moving left", "moving right")
    half = radius + (_GAP + (2.0 if scene.post and beside else 0.0)) / 2
    if thing.motion in ("resting", "growing", "shrinking") and not scene.mirror:
        beside = rng.random() < 0.5
        half = radius + (_GAP + (2.0 if scene.post and beside else 0.0)) / 2
    axis = np.array([1.0, 0.0] if beside else [0.0, 1.0])
    return np.stack([-half * axis, half * axis])


def _path(motion: str, time: Array, room: Array, rng: random.Random) -> Array:
    """The way of a thing from the origin, [F, 2], no further than ``room``."""
    way = np.zeros((FRAMES, 2))
    axis, sign = {
        "moving left": (0, -1.0),
        "moving right": (0, 1.0),
        "moving up": (1, -1.0),
        "moving down": (1, 1.0),
    }.get(motion, (0, 0.0))
    way[:, axis] = sign * min(TRAVEL, room[axis]) * time
    if motion == "circling":
        angle = 2 * np.pi * (rng.random() + np.arange(FRAMES) / FRAMES)
        way = min(ORBIT, float(room.min()) / 2) * np.stack([np.cos(angle), np.sin(angle)], 1)
    return way


def _background(scene: Scene, rng: random.Random) -> Array:
    """[H, W, 3]."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    phase = rng.randrange(8)
    factor = np.ones((HEIGHT, WIDTH))
    if scene.pattern == "striped":
        factor = np.where((x + phase) // 4 % 2 == 0, 1.0, 0.6)
    elif scene.pattern == "checked":
        factor = np.where(((x + phase) // 4 + (y + phase) // 4) % 2 == 0, 1.0, 0.6)
    elif scene.pattern == "graded":
        factor = 0.55 + 0.55 * y / (HEIGHT - 1)
    ground: Array = factor[..., None] * np.array(TONES[scene.tone])
    return ground


def _light_path(scene: Scene) -> Array | None:
    """Where a moving light stands, x by frame."""
    if not scene.light.startswith("light moving"):
        return None
    way = np.linspace(1.0, WIDTH - 1.0, FRAMES)
    return way if scene.light == "light moving right" else way[::-1]


def _light(scene: Scene, centre: Array | None, rng: random.Random) -> Array:
    """What everything is multiplied by: [F, H, W]."""
    light = np.ones((FRAMES, HEIGHT, WIDTH))
    if scene.light == "flickering light":
        phase = rng.randrange(2)
        for index in range(FRAMES):
            low = (index + phase) % 2 == 0
            light[index] = rng.uniform(0.60, 0.70) if low else rng.uniform(0.92, 1.0)
    if centre is not None:
        away = (np.arange(WIDTH)[None, :] + 0.5 - centre[:, None]) / 7.0
        light *= (0.60 + 0.40 * np.exp(-(away**2)))[:, None, :]
    return light


def _shadow(bodies: tuple[Body, ...], index: int, light: float | None) -> Array:
    """What the background is multiplied by, [H, W]; shadows fall away from a moving light."""
    factor = np.ones((HEIGHT, WIDTH))
    for body in bodies:
        x, y = body.path[index]
        aside = 2.0 if light is None else float(np.clip((x - light) / 4.0, -3.0, 3.0))
        mask = coverage(body.shape, x + aside, y + 2.0, body.radius[index], 2)
        factor = np.minimum(factor, 1.0 - 0.55 * mask)
    return factor
