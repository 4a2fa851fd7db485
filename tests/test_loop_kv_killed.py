"""A small real loop on the fast model, killed at random instants."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

from galoop.report.model import read_result
from galoop.store.run import RunStore
from loop_tools import plain_files

KILLS = 20
FAST = Path(str(files("galoop.models"))) / "fast"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (FAST / "model.safetensors").is_file(), reason="no fast model here"),
]

EXPERIMENT = """
name = "kills"
seed = 1
run_dir = "{run_dir}"
[model]
name = "fast"
threads = 1
[criterion]
tau0 = 0.6
tau = 0.2
[discriminator]
length = 120
screen_examples = 8
max_candidates = 20
[admission]
examples = 20
sealed = 5
[generator]
max_candidates = 4
examples = 6
fresh = 2
[gate]
suites = []
[loop]
rounds = 1
"""


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    path = folder / f"{name}.toml"
    path.write_text(EXPERIMENT.format(run_dir=folder / name), encoding="utf-8")
    arguments = [sys.executable, "-m", "galoop", "loop", str(path), "--quiet"]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL)


def test_twenty_kills_of_a_real_loop_end_as_an_uninterrupted_run(fast_path: Path) -> None:
    began = time.monotonic()
    assert start(fast_path, "base").wait() == 0
    span = time.monotonic() - began
    base = plain_files(fast_path / "base")
    assert read_result(fast_path / "base").slices, "something is found, frozen and reported"

    chance, kills, attempt = random.Random(3), 0, 0
    while kills < KILLS:
        name = f"run{attempt}"
        while True:
            process = start(fast_path, name)
            try:
                # From before the store is made to past the end; when enough were killed, none.
                limit = chance.uniform(0.1, 1.0) * span if kills < KILLS else None
                process.wait(timeout=limit)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
        assert process.returncode == 0
        ours = plain_files(fast_path / name)
        del ours["experiment.toml"]  # names its own run folder
        assert ours == {k: v for k, v in base.items() if k != "experiment.toml"}
        with RunStore.open(fast_path / name) as store:
            assert store.total().evaluations == len(store.to_rows()), "paid once for each"
        attempt += 1
    assert kills >= KILLS
