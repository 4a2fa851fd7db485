"""What the tests of whole loops share: a small experiment, and the bytes of a run folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_domain
from galoop.config import ExperimentConfig

#: Two rounds, two slices and a generation in a fraction of a second.
SMALL: dict[str, Any] = {
    "seed": 0,
    "criterion__tau0": 0.6,
    "criterion__tau": 0.25,
    "discriminator__max_candidates": 25,
    "admission__examples": 24,
    "admission__sealed": 6,
    "generator__max_candidates": 25,
    "generator__examples": 8,
    "gate__examples": 25,
}


def small(**changes: Any) -> ExperimentConfig:
    """The small experiment, with changes."""
    return fake_domain.config(**{**SMALL, **changes})


def plain_files(run: Path) -> dict[str, bytes]:
    """The files of a run folder that must not differ between two runs of one seed."""
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm")
    }


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory where the machine has one: a run store flushes after each evaluation."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    folder = Path(tempfile.mkdtemp(prefix="galoop-test-", dir=memory if usable else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
