"""Filmstrips and contact sheets, pixel by pixel."""

from __future__ import annotations

import io

import numpy as np
import pytest

from galoop.domains.sparse_video.pictures import (
    GAP,
    contact_sheet,
    difference,
    filmstrip,
    gif,
    png,
    strip,
)
from galoop.errors import UsageError

Image = pytest.importorskip("PIL.Image", reason="needs pillow, which the extra `video` brings")

DENSE = np.random.default_rng(0).random((3, 4, 5, 3))
SPARSE = np.clip(DENSE + 0.25, 0, 1)


def test_a_strip_shows_every_frame_enlarged() -> None:
    found = strip(DENSE, scale=2)
    assert found.shape == (8, 3 * 10 + 2 * GAP, 3)
    for index in range(3):
        left = index * (10 + GAP)
        frame = found[::2, left : left + 10 : 2]
        assert np.array_equal(frame, np.round(DENSE[index] * 255).astype(np.uint8))
    assert (found[:, 10 : 10 + GAP] == 255).all()


def test_the_difference_is_amplified_and_clipped() -> None:
    a, b = np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 3, 3))
    b[0, 0, 1], b[0, 0, 2] = 0.2, 0.9
    assert difference(a, b, gain=2.0)[0, 0, :, 0].tolist() == [0.0, 0.4, 1.0]
    with pytest.raises(UsageError, match="cannot be subtracted"):
        difference(a, b[:, :, :2])


def test_a_filmstrip_has_three_rows() -> None:
    found = filmstrip(DENSE, SPARSE, scale=1)
    assert found.shape == (3 * 4 + 2 * GAP, 15 + 2 * GAP, 3)
    assert np.array_equal(found[:4], strip(DENSE, 1))
    assert np.array_equal(found[4 + GAP : 8 + GAP], strip(SPARSE, 1))
    assert not filmstrip(DENSE, DENSE, scale=1)[8 + 2 * GAP :, :5].any()


def test_a_sheet_of_clips_of_different_lengths() -> None:
    sheet = contact_sheet([(DENSE, SPARSE), (DENSE[:2], SPARSE[:2])], scale=1)
    assert sheet.shape == (2 * (12 + 2 * GAP) + 4 * GAP, 15 + 2 * GAP, 3)
    with pytest.raises(UsageError, match="at least one"):
        contact_sheet([])
    with pytest.raises(UsageError, match="frames are"):
        strip(np.zeros((4, 5, 3)))


def test_files_open_again() -> None:
    picture = strip(DENSE, 1)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(picture)))), picture)
    moving = Image.open(io.BytesIO(gif(DENSE, scale=3, fps=10)))
    assert (moving.size, moving.n_frames, moving.info["duration"]) == ((15, 12), 3, 100)
