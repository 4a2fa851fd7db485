"""Fixtures that several test files share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_domain


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> fake_domain.World:
    """The domain, suite and proposer ``fake``, installed for one test."""
    return fake_domain.install(fake_domain.World(), monkeypatch.setattr)


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the machine has one: a run store flushes after each evaluation."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="galoop-test-", dir=memory))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
