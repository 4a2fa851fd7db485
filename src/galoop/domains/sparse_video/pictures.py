"""Pictures for reports: filmstrips of dense, sparse and their difference; contact sheets; GIFs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galoop.errors import UsageError

Array = NDArray[Any]

GAP = 2
"""Pixels between frames, after enlarging."""
PAPER = 255


def strip(frames: Array, scale: int = 4) -> Array:
    """The frames of a clip beside one another.

    Parameters
    ----------
    frames : array
        [F, H, W, 3] in [0, 1].
    scale : int
        Each pixel becomes scale × scale, without smoothing.

    Returns
    -------
    array of uint8
        [H·scale, F·(W·scale + GAP) − GAP, 3].
    """
    levels = _levels(frames)
    large = levels.repeat(scale, axis=1).repeat(scale, axis=2)
    parts = []
    for frame in large:
        parts += [np.full((large.shape[1], GAP, 3), PAPER, np.uint8), frame]
    return np.concatenate(parts[1:], axis=1)


def difference(dense: Array, sparse: Array, gain: float = 2.0) -> Array:
    """|dense − sparse| × gain, clipped to [0, 1]: black where nothing changed."""
    if dense.shape != sparse.shape:
        raise UsageError(f"clips of {dense.shape} and {sparse.shape} cannot be subtracted")
    found: Array = np.clip(np.abs(dense - sparse) * gain, 0, 1)
    return found


def filmstrip(dense: Array, sparse: Array, scale: int = 4, gain: float = 2.0) -> Array:
    """Three strips one under another: dense, sparse, and their difference."""
    return stack([strip(x, scale) for x in (dense, sparse, difference(dense, sparse, gain))])


def contact_sheet(pairs: Sequence[tuple[Array, Array]], scale: int = 2) -> Array:
    """The filmstrips of a slice's examples, one under another."""
    if not pairs:
        raise UsageError("a contact sheet needs at least one example")
    return stack([filmstrip(*pair, scale=scale) for pair in pairs], 4 * GAP)


def stack(pictures: Sequence[Array], gap: int = GAP) -> Array:
    """Pictures one under another, on white, flush left."""
    width = max(picture.shape[1] for picture in pictures)
    rows = []
    for picture in pictures:
        rows.append(np.full((gap, width, 3), PAPER, np.uint8))
        padding = ((0, 0), (0, width - picture.shape[1]), (0, 0))
        rows.append(np.pad(picture, padding, constant_values=PAPER))
    return np.concatenate(rows[1:])


def png(picture: Array) -> bytes:
    """A picture as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def gif(frames: Array, scale: int = 4, fps: int = 8) -> bytes:
    """A clip as a looping GIF, for looking at: its 256 colours are no basis for figures."""
    from PIL import Image

    large = _levels(frames).repeat(scale, axis=1).repeat(scale, axis=2)
    images = [Image.fromarray(frame) for frame in large]
    buffer = io.BytesIO()
    images[0].save(
        buffer, format="GIF", save_all=True, append_images=images[1:], loop=0,
        duration=round(1000 / fps),
    )  # fmt: skip
    return buffer.getvalue()


def _levels(frames: Array) -> NDArray[np.uint8]:
    if frames.ndim != 4 or frames.shape[-1] != 3 or not frames.size:
        raise UsageError(f"a clip of shape {frames.shape}", "frames are [F, H, W, 3]")
    levels: NDArray[np.uint8] = np.round(np.clip(frames, 0, 1) * 255).astype(np.uint8)
    return levels
