"""Does a clip show what its prompt says? Read from the pixels alone, without a model.

Colours are told by hue, which light does not change; counts by connected regions; shapes by the
best-fitting template of the same area; motions by the way of the colour's centre and its area.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galoop.domains.sparse_video.clips import (
    CROSS,
    HEIGHT,
    POST,
    SQUARE,
    WIDTH,
    coverage,
)
from galoop.domains.sparse_video.prompts import COLOURS, SHAPES, Scene, Thing, parse
from galoop.errors import UsageError

Array = NDArray[Any]

LEAST_CHROMA = 0.3
"""Below this a pixel is background, shadow or reflection."""
LEAST_AREA = 3.0
"""Pixels of a region that counts."""
_AREA = {
    "circle": np.pi,
    "square": 4 * SQUARE**2,
    "triangle": 2.0,
    "cross": 8 * CROSS - 4 * CROSS**2,
}
_DOWN = {"triangle": 1.0 / 3.0}  # a triangle's centre of mass lies below the middle of its box


@dataclass(frozen=True)
class Verdict:
    """What of a prompt a clip shows.

    Attributes
    ----------
    facets : mapping of str to float
        ``colour``, ``count``, ``shape``, ``motion``: the share of the prompt's things for which
        it is right; ``nothing else``: 1 where no other colour of the language appears.
    seen : mapping
        What was found for each thing, for people.
    """

    facets: Mapping[str, float]
    seen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def passes(self) -> bool:
        """Whether everything is right."""
        return all(value == 1.0 for value in self.facets.values())

    @property
    def score(self) -> float:
        """The mean of the facets, in [0, 1]."""
        return sum(self.facets.values()) / len(self.facets)


def check(frames: Array, prompt: str | Scene) -> Verdict:
    """Compare a clip with its prompt.

    Parameters
    ----------
    frames : array
        [F, H, W, 3] in [0, 1], H = W = 24.
    prompt : str or Scene

    Raises
    ------
    UsageError
        The prompt is not of the language, or the clip has another shape.
    """
    scene = parse(prompt) if isinstance(prompt, str) else prompt
    frames = np.asarray(frames, dtype=np.float64)
    if frames.ndim != 4 or frames.shape[1:] != (HEIGHT, WIDTH, 3) or len(frames) < 4:
        raise UsageError(
            f"a clip of shape {frames.shape} cannot be checked",
            f"it is [F ≥ 4, {HEIGHT}, {WIDTH}, 3]",
        )
    colours, chroma = _classify(frames)
    right: dict[str, list[float]] = {name: [] for name in ("colour", "count", "shape", "motion")}
    seen = {}
    for thing in scene.things:
        found = _observe(colours, chroma, COLOURS.index(thing.colour), scene.post)
        seen[str(thing)] = found
        for name, good in _compare(thing, found).items():
            right[name].append(float(good))
    facets = {name: sum(values) / len(values) for name, values in right.items()}
    facets["nothing else"] = float(not _others(colours, scene))
    return Verdict(facets, seen)


def _classify(frames: Array) -> tuple[Array, Array]:
    """The colour's index at each pixel (−1: none) and the chroma, both [F, H, W]."""
    chroma = frames.max(-1) - frames.min(-1)
    red, green, blue = np.moveaxis(frames, -1, 0)
    hue = np.degrees(np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue)) % 360
    index = np.round(hue / 60).astype(int) % 6
    colours = np.full(chroma.shape, -1)
    for colour in range(len(COLOURS)):
        mine = index == colour
        peak = np.where(mine, chroma, 0.0).max((1, 2), keepdims=True)
        # half of the brightest: where a shape covers half a pixel, in whatever light
        colours[mine & (chroma >= np.maximum(LEAST_CHROMA, 0.5 * peak))] = colour
    return colours, chroma


def _observe(colours: Array, chroma: Array, colour: int, post: bool) -> dict[str, Any]:
    """Count, shape and motion of one colour; a count of 0 where it is hardly ever there."""
    masks = colours == colour
    areas = masks.sum((1, 2)).astype(float)
    there = areas >= LEAST_AREA
    if there.sum() < 0.6 * len(masks):
        return {"count": 0, "shape": "", "motion": ""}
    regions = [_regions(mask, post) if on else [] for mask, on in zip(masks, there, strict=True)]
    counts = [len(found) for found, on in zip(regions, there, strict=True) if on]
    count = max(sorted(set(counts)), key=counts.count)
    return {
        "count": count,
        "shape": _shape(regions, np.where(masks, chroma, 0.0), count, post),
        "motion": _motion(masks, areas, there),
    }


def _regions(mask: Array, post: bool) -> list[Array]:
    """Connected regions of one frame, largest first; a post does not part what it crosses."""
    from scipy import ndimage

    joined = mask.copy()
    if post:
        left, right = mask[:, POST[0] - 1], mask[:, POST[1]]
        joined[:, POST[0] : POST[1]] |= (left & right)[:, None]
    labels, n = ndimage.label(joined)
    regions = sorted((labels == i + 1 for i in range(n)), key=lambda r: -int(r.sum()))
    if not regions:
        return []
    least = max(LEAST_AREA, 0.2 * float(regions[0].sum()))
    return [region for region in regions if region.sum() >= least]


def _shape(regions: list[list[Array]], chroma: Array, count: int, post: bool) -> str:
    """The shape whose template fits best, over the frames with the usual number of regions."""
    fits = dict.fromkeys(SHAPES, 0.0)
    for found, frame in zip(regions, chroma, strict=True):
        if len(found) != count:
            continue
        for region in found:
            # region edges were cut at half coverage: give the fainter edge pixels back
            near = _grown(region)
            cover = np.where(near, np.clip(frame / max(frame[region].max(), 1e-9), 0, 1), 0.0)
            cover[region & (frame == 0)] = 1.0  # behind the post
            for shape in SHAPES:
                fits[shape] += _fit(shape, cover, post) * float(region.sum())
    return max(SHAPES, key=lambda shape: fits[shape])


def _grown(region: Array) -> Array:
    from scipy import ndimage

    grown: Array = ndimage.binary_dilation(region)
    return grown


def _fit(shape: str, cover: Array, post: bool) -> float:
    """Overlap over union of soft masks; the post's columns say nothing."""
    area = cover.sum()
    radius = float(np.sqrt(area / _AREA[shape]))
    x = float((cover.sum(0) * (np.arange(WIDTH) + 0.5)).sum() / area)
    y = float((cover.sum(1) * (np.arange(HEIGHT) + 0.5)).sum() / area)
    template = coverage(shape, x, y - _DOWN.get(shape, 0.0) * radius, radius)
    if post:
        template, cover = template.copy(), cover.copy()
        template[:, POST[0] : POST[1]] = cover[:, POST[0] : POST[1]] = 0.0
    return float(np.minimum(template, cover).sum() / np.maximum(template, cover).sum())


def _motion(masks: Array, areas: Array, there: Array) -> str:
    """The motion of a colour from the way of its centre and the trend of its area."""
    time = np.flatnonzero(there).astype(float)
    seen, area = masks[there], areas[there]
    x = (seen.sum(1) * (np.arange(WIDTH) + 0.5)).sum(1) / area
    y = (seen.sum(2) * (np.arange(HEIGHT) + 0.5)).sum(1) / area
    last = len(masks) - 1
    lines = [np.polyfit(time, values, 1) for values in (x, y)]
    rest = [v - np.polyval(line, time) for v, line in zip((x, y), lines, strict=True)]
    if np.sqrt(np.mean(rest[0] ** 2 + rest[1] ** 2)) >= 1.2:
        return "circling"
    dx, dy = (float(line[0]) * last for line in lines)
    if max(abs(dx), abs(dy)) >= 3.5:
        if abs(dx) >= abs(dy):
            return "moving right" if dx > 0 else "moving left"
        return "moving down" if dy > 0 else "moving up"
    growth = float(np.polyfit(time, np.log(area), 1)[0]) * last
    if abs(growth) >= np.log(1.8):
        return "growing" if growth > 0 else "shrinking"
    return "resting" if max(abs(dx), abs(dy)) < 2.0 else ""


def _compare(thing: Thing, found: Mapping[str, Any]) -> dict[str, bool]:
    there = found["count"] > 0
    return {
        "colour": there,
        "count": found["count"] == thing.count,
        "shape": there and found["shape"] == thing.shape,
        "motion": there and found["motion"] == thing.motion,
    }


def _others(colours: Array, scene: Scene) -> list[str]:
    """Colours that the scene does not have, in at least two frames as more than a thin edge."""
    from scipy import ndimage

    wanted = {thing.colour for thing in scene.things}
    found = []
    for index, name in enumerate(COLOURS):
        if name in wanted:
            continue
        frames = [ndimage.binary_opening(mask, np.ones((2, 2))) for mask in colours == index]
        if sum(bool(frame.sum() >= 2 * LEAST_AREA) for frame in frames) >= 2:
            found.append(name)
    return found
