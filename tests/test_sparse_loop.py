"""The loop closed in both directions on sparse decoding, with the fast model."""

from __future__ import annotations

from pathlib import Path

import pytest

from galoop.config import ExperimentConfig
from galoop.loop import run_loop
from galoop.plugins import names
from galoop.replay import replay
from galoop.report.progress import NullProgress

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "sparse-decoding" not in names("domains"),
        reason="the package is installed without the domain",
    ),
]


def config() -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "domain": "sparse-decoding",
            "model": {"name": "fast", "threads": 1},
            "artifact": {"start": "sliding-window", "density": 0.1},
            "criterion": {"tau0": 0.5, "tau": 0.3},
            "discriminator": {"length": 128, "max_candidates": 4},
            "admission": {"examples": 20, "sealed": 10},
            "generator": {"max_candidates": 6, "examples": 10},
            "gate": {
                "components": ("niah_single_1",),
                "length": 128,
                "max_new_tokens": 8,
                "examples": 25,
                "most_examples": 25,
                "look": 5,
            },
            "evaluation": {"max_new_tokens": 10},
            "loop": {"rounds": 1},
        }
    )


def test_a_slice_is_found_repaired_and_replayed(tmp_path: Path) -> None:
    run_loop(config(), tmp_path / "run", NullProgress())
    folder = tmp_path / "run" / "benchmark" / "B1"
    assert folder.is_dir()
    assert (tmp_path / "run" / "artifacts" / "gen-1" / "selector.py").is_file()
    found = replay(
        folder,
        ["sliding-window", "identity", str(tmp_path / "run" / "artifacts" / "gen-1")],
        model="fast",
        limit=10,
        progress=NullProgress(),
    )
    start, identity, repaired = found.rows
    assert start.score.estimate < 0.3
    assert identity.score.estimate == identity.reference.estimate
    assert repaired.score.estimate > start.score.estimate + 0.3
    assert repaired.measured["density"] <= 0.1
    assert identity.measured["density"] == 1.0
    assert repaired.measured["index_fraction"] <= 2.0
