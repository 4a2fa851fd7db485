"""A made-up result with everything in it, for the tests of the report and of the commands."""

from __future__ import annotations

import difflib
import random

from galoop.report.model import (
    AdmissionReport,
    Cell,
    Column,
    ComponentReport,
    GenerationReport,
    LedgerRow,
    LoopResult,
    LoopTable,
    PrintedExample,
    Provenance,
    Rejection,
    Row,
    SearchReport,
    SliceChange,
    SliceReport,
)
from galoop.report.words import summary

COMPONENTS = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
PARENT = {
    "press.py": "from kvpress import CompactorPress\n\n\n"
    "def build_press(compression_ratio):\n"
    "    return CompactorPress(compression_ratio=compression_ratio)\n",
}
CHILD = {
    "press.py": "from kvpress import KeyDiffPress\n\n\n"
    "def build_press(compression_ratio):\n"
    '    """Keep what differs from its neighbours."""\n'
    "    return KeyDiffPress(compression_ratio=compression_ratio)\n",
}
PROBE = '''def build(rng, length, count_tokens):
    """A ledger whose current entry stands among stale ones."""
    entries = [(rng.randrange(100, 999), rng.randrange(10, 99)) for _ in range(24)]
    lines = [f"Account {key}: {value}" for key, value in entries]
    key, value = rng.choice(entries)
    return {
        "context": "\\n".join(lines),
        "question": f"What stands for account {key}?",
        "answer": str(value),
        "evidence": [f"Account {key}: {value}"],
    }
'''


def cell(estimate: float, n: int = 40, half: float = 0.12) -> Cell:
    """A cell with a made-up interval."""
    return Cell(estimate, max(0.0, estimate - half), min(1.0, estimate + half), n)


def example(seed: int = 7) -> PrintedExample:
    """A made-up example whose evidence stands in the middle of a long context."""
    rng = random.Random(seed)
    lines = [f"Account {rng.randrange(100, 999)}: {rng.randrange(10, 99)}" for _ in range(60)]
    lines[31] = "Account 417: 52"
    return PrintedExample(
        context="Ledger of the <harbour> & its stores.\n" + "\n".join(lines),
        question="What stands for account 417?",
        gold=("52",),
        evidence=("Account 417: 52",),
        seed=seed,
        reference=" 52.",
        artifact=" 71, as the ledger says",
        answer_prefix="It is",
    )


def admission(admitted: bool = True) -> AdmissionReport:
    """A made-up admission."""
    return AdmissionReport(
        admitted=admitted,
        reason="both bounds hold" if admitted else "the gap's lower bound 0.11 is below 0.30",
        reference=cell(0.975, half=0.08),
        artifact=cell(0.275),
        gap=cell(0.7, half=0.15),
        reference_lower=0.86,
        gap_lower=0.54 if admitted else 0.11,
        alpha_spent=0.0304,
        attempt=1,
        n=40,
    )


def slice_report(name: str, round_: int, against: str) -> SliceReport:
    """A made-up slice."""
    return SliceReport(
        name=name,
        round=round_,
        against=against,
        words="Ledgers of look-alike accounts; the question asks for one of them by its number.",
        source=PROBE,
        probe_key="3fa9" * 16,
        screening_gap=0.9,
        admission=admission(),
        example=example(),
    )


def generation(name: str, round_: int, parent: str, accepted: bool = True) -> GenerationReport:
    """A made-up generation."""
    diff = "".join(
        difflib.unified_diff(
            PARENT["press.py"].splitlines(True),
            CHILD["press.py"].splitlines(True),
            f"{parent}/press.py",
            f"{name}/press.py",
        )
    )
    statuses = ("pass", "pass", "inconclusive", "fail", "not gating", "pass")
    return GenerationReport(
        name=name,
        round=round_,
        parent=parent,
        accepted=accepted,
        words="Scores tokens by how far their keys stand from the mean key instead of leverage.",
        reason="better on every slice; no gating component lost" if accepted else "vt lost 0.20",
        diff=diff,
        key="77ab" * 16,
        files=CHILD,
        measured={"kept_fraction": 0.25, "kept_bytes": 1433600.0, "forward_passes": 0.0},
        changes=(SliceChange("B1", cell(0.3), cell(0.9, half=0.1), 24, 0, 5.96e-08),),
        components=tuple(
            ComponentReport(
                component=f"ruler/{component}",
                status="pass" if accepted and status == "fail" else status,
                reference=cell(0.9),
                old=cell(0.8),
                new=cell(0.82),
                difference=Cell(0.02, -0.06, 1.0, 32),
                delta=0.1,
                n=32,
                reason="the reference scores 0.12, below 0.30" if status == "not gating" else "",
            )
            for component, status in zip(COMPONENTS, statuses, strict=True)
        ),
    )


def sample() -> LoopResult:
    """Two rounds with two slices; every part of a report is there."""
    columns = (
        Column("B1", "B₁", "slice", "A₀"),
        Column("B2", "B₂", "slice", "Gen-1"),
        *(Column(f"ruler/{c}", c, "suite") for c in COMPONENTS),
    )
    figures = {
        "reference": (0.975, 0.95, 1.0, 0.94, 0.91, 0.78, 0.62, 0.69),
        "A0": (0.275, 0.3, 0.94, 0.41, 0.34, 0.66, 0.55, 0.66),
        "Gen-1": (0.9, 0.425, 0.97, 0.66, 0.47, 0.72, 0.53, 0.67),
        "Gen-2": (0.925, 0.85, 0.97, 0.69, 0.5, 0.72, None, 0.67),
    }
    titles = {"reference": "reference", "A0": "A₀ compactor", "Gen-1": "Gen-1", "Gen-2": "Gen-2"}
    rows = tuple(
        Row(key, titles[key], tuple(None if v is None else cell(v) for v in values))
        for key, values in figures.items()
    )
    table = LoopTable(columns, rows)
    slices = (slice_report("B1", 1, "A0"), slice_report("B2", 2, "Gen-1"))
    generations = (generation("Gen-1", 1, "A0"), generation("Gen-2", 2, "Gen-1", accepted=False))
    return LoopResult(
        provenance=Provenance(
            name="sample",
            domain="kv-compression",
            seed=0,
            model="smollm2-135m",
            dtype="bfloat16",
            fingerprint="c0ffee" * 10,
            start="compactor",
            budget={"compression_ratio": 0.75},
            criterion={"tau0": 0.8, "tau": 0.3},
            gate={"delta": 0.1, "alpha": 0.05, "reference_floor": 0.3},
            isolation="bubblewrap",
            versions={"galoop": "0.1.0", "kvpress": "0.5.5", "torch": "2.13.0"},
        ),
        table=table,
        summary=summary(table, slices, generations),
        slices=slices,
        generations=generations,
        searches=(
            SearchReport(
                1, "discriminator", "A0", "grammar", "gepa", 31, 6, 310, 0.9, True,
                "an admitted slice", (admission(False), admission()), ((1, 0.1), (9, 0.9)),
            ),
            SearchReport(
                1, "generator", "A0", "grammar", "gepa", 40, 3, 1480, 0.9, True,
                "an accepted artifact",
            ),
        ),
        rejections=(
            Rejection(1, "discriminator", "the answer is not in the context", 4),
            Rejection(1, "discriminator", "examples repeat over seeds", 2),
            Rejection(1, "generator", "over budget: kept 0.31 of 0.25 | all layers", 3),
        ),
        ledger=(
            LedgerRow("round 1 discriminator", "grammar", "proposal", 31, 0, 0, 0, 0.0),
            LedgerRow("round 1 discriminator", "smollm2-135m", "evaluation", 620, 620, 0, 0, None,
                      "unknown"),
        ),
        notes=("Candidate code ran in plain processes: `gal doctor` says how to isolate it.",),
    )  # fmt: skip
