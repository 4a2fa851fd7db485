"""Scope, matrix and shrink on the embedded model, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from galoop.benchmark import Slice, freeze, read_slice
from galoop.cli.main import run as gal
from galoop.config import ExperimentConfig
from galoop.domains.kv_compression.domain import KVCompression
from galoop.store.run import RunStore
from galoop.types import Candidate

pytestmark = pytest.mark.embedded

PROBE = '''"""A deposit among other facts."""

import random

# Who has one.
NAMES = "loquat poster slate twig cover spice stand upper hunt neck".split()
THINGS = "bump tongue bamboo rescue tailor parade pagoda clamp pastry armor".split()


def build(rng, length, count_tokens):
    name = rng.choice(NAMES)
    value = f"{rng.randint(1000, 9999)} dollars"
    fact = f"Name: {name}. Deposit: {value}."
    sentences = []
    while True:
        more = f"The height of the {rng.choice(THINGS)} is {rng.randint(10, 99)}."
        text = " ".join([*sentences, more]) + "\\n" + fact
        if count_tokens(text) > length:
            break
        sentences.append(more)
    context = " ".join(sentences) + "\\n" + fact
    return {
        "context": context,
        "question": f"\\nAccording to the text, what is the deposit of the {name}?",
        "answer": value,
        "answer_prefix": f"Name: {name}. Deposit:",
        "evidence": [fact],
    }
'''


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    config = ExperimentConfig.model_validate(
        {
            "artifact": {"start": "compactor", "compression_ratio": 0.75},
            "discriminator": {"length": 128},
            "model": {"dtype": "float32", "threads": 1},
        }
    )
    session = KVCompression().open(config, lambda text: None)
    try:
        built = session.build_probe(PROBE, list(range(12)))
    finally:
        session.close()
    assert not built.rejected, built.rejected
    about = {
        "domain": "kv-compression",
        "length": 128,
        "against": "A0",
        "artifact": "compactor",
        "model": "smollm2-135m",
        "dtype": "float32",
        "budget": {"compression_ratio": 0.75},
        "criterion": {"tau0": 0.5, "tau": 0.2},
    }
    probe = Candidate("probe", {"probe.py": PROBE})
    with RunStore.create_or_open(tmp_path / "run", {"command": "test"}) as store:
        made = Slice("B1", probe, built.examples[:6], built.examples[6:], about)
        freeze(store, "benchmark/B1", made)
    return tmp_path / "run" / "benchmark" / "B1"


def test_a_slice_of_the_embedded_model(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--threads", "1", "--quiet", "--json", "--run-dir"]
    scope = ["scope", str(frozen), "--examples", "4", "--budget", "0.25", "--lengths", "96"]
    assert gal([*scope, "--depths", "0.5", *shared, str(tmp_path / "scope")]) == 0
    found = json.loads(capsys.readouterr().out)
    cells = [cell for grid in found["grids"] for line in grid["cells"] for cell in line]
    assert len(cells) == 2 * 2 + 2
    assert all(cell["gap"]["n"] == 4 for cell in cells)
    kept = [line[0]["measured"]["kept_fraction"] for line in found["grids"][0]["cells"]]
    assert kept == pytest.approx([0.75, 0.75], abs=0.02)

    matrix = ["matrix", str(frozen), "--artifact", "compactor", "--artifact", "identity"]
    assert gal([*matrix, "--examples", "4", *shared, str(tmp_path / "matrix")]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert cells[1]["result"]["gap"]["estimate"] == 0.0
    assert cells[0]["result"]["gap"]["estimate"] > 0.5, "compactor loses what stands at the end"

    shrink = ["shrink", str(frozen), "--examples", "4", "--fresh", "16", "--max-candidates", "3"]
    code = gal([*shrink, *shared, str(tmp_path / "shrink")])
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["confirmed"] else 1)
    assert report["tried"] == 3
    assert report["confirmed"]
    assert "# Who" not in report["source"]
    assert read_slice(tmp_path / "shrink" / "benchmark" / "B1").probe.source == report["source"]
