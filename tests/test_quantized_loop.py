"""One round on a quantized cache of the fast model: a break is found and repaired at equal bits."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from galoop.config import load
from galoop.loop import run_loop
from galoop.replay import replay
from galoop.report.progress import NullProgress
from test_quantized_kv import installed

FAST = Path(str(files("galoop.models"))) / "fast" / "model.safetensors"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FAST.is_file(), reason="no fast model here"),
    pytest.mark.usefixtures("installed"),
]

__all__ = ["installed"]


def test_a_break_is_found_repaired_and_replayed(tmp_path: Path) -> None:
    config = load(
        None,
        {
            "domain": "quantized-kv", "seed": 1, "model.name": "fast", "model.threads": 1,
            "criterion.tau0": 0.6, "criterion.tau": 0.2, "discriminator.length": 120,
            "discriminator.screen_examples": 8, "discriminator.max_candidates": 20,
            "admission.examples": 20, "admission.sealed": 5, "generator.max_candidates": 12,
            "generator.examples": 8, "generator.fresh": 6, "gate.suites": (), "loop.rounds": 1,
        },
    )  # fmt: skip
    result = run_loop(config, tmp_path / "run", NullProgress())
    assert result.slices, "a slice is found"
    assert result.generations[0].accepted, "and repaired"
    assert result.generations[0].measured["bits"] <= 2.75
    again = replay(
        tmp_path / "run" / "benchmark" / "B1",
        ["kivi", "identity", str(tmp_path / "run" / "artifacts" / "gen-1")],
        progress=NullProgress(),
    )
    broken, same, repaired = again.rows
    assert {row.invalid for row in again.rows} == {""}
    assert same.gap.estimate == 0.0
    assert broken.gap.estimate > 0.2
    assert repaired.gap.estimate < broken.gap.estimate
    assert repaired.measured["bits"] <= 2.75
