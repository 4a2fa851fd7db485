"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_domain
from loop_tools import in_memory


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> fake_domain.World:
    """The domain, suite and proposer ``fake``, installed for one test."""
    return fake_domain.install(fake_domain.World(), monkeypatch.setattr)


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A folder in memory, removed after the test."""
    with in_memory() as folder:
        yield folder
