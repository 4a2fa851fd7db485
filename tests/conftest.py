"""Fixtures that several test files share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_domain
from fake_domain import World
from galoop.loop import run_loop
from galoop.report.progress import NullProgress
from loop_tools import in_memory, small


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> fake_domain.World:
    """The domain, suite and proposer ``fake``, installed for one test.

    ``gal loop`` then loads no embedding model at its end.
    """
    monkeypatch.setattr("galoop.diversity.embedding.available", lambda: False)
    return fake_domain.install(fake_domain.World(), monkeypatch.setattr)


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A folder in memory, removed after the test."""
    with in_memory() as folder:
        yield folder


@pytest.fixture(scope="module")
def finished() -> Iterator[tuple[Path, World]]:
    """An uninterrupted small loop, run once, and what it evaluated."""
    with pytest.MonkeyPatch.context() as patch, in_memory() as folder:
        world = fake_domain.install(World(), patch.setattr)
        run_loop(small(), folder / "base", NullProgress())
        patch.undo()
        yield folder / "base", world


@pytest.fixture
def base(finished: tuple[Path, World], world: World, fast_path: Path) -> Path:
    """A copy of that loop's run folder."""
    return Path(shutil.copytree(finished[0], fast_path / "base"))
