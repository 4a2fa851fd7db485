"""Shrinking: what is kept still fails, a break holds on fresh seeds, and stops resume."""

from __future__ import annotations

import ast
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import program_domain
from galoop.across.slices import Machine
from galoop.benchmark import read_slice
from galoop.cli.main import run as gal
from galoop.errors import UsageError
from galoop.report.progress import NullProgress
from galoop.report.shrunk import read_shrunk
from galoop.shrink.edits import PASSES, chunks, plainer_words
from galoop.shrink.run import Ask, shrink
from galoop.shrink.search import Knobs, Shrinker, Step
from galoop.shrink.size import PLAIN, size
from galoop.shrink.text import Source, tidy, without_comments
from galoop.store.run import RunStore
from loop_tools import in_memory, plain_files
from program_domain import PROBE, ProgramWorld, write_slice

KNOBS = Knobs(examples=8, fresh=30, sealed=8, max_candidates=2000)


@dataclass
class Base:
    """One whole shrink, shared by tests that look at it."""

    path: Path
    out: Path
    report: Any
    paid: int


@pytest.fixture(scope="module")
def whole() -> Iterator[Base]:
    with pytest.MonkeyPatch.context() as patch, in_memory() as folder:
        world = program_domain.install(ProgramWorld(), patch.setattr)
        path = write_slice(folder / "run")
        report = shrunk(path, folder / "out")
        patch.undo()
        yield Base(path, folder / "out", report, len(world.evaluated))


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> ProgramWorld:
    return program_domain.install(ProgramWorld(), monkeypatch.setattr)


def shrunk(path: Path, folder: Path, **changes: Any) -> Any:
    knobs = Knobs(**{**KNOBS.__dict__, **changes})
    ask = Ask(knobs=knobs)
    return shrink(path, ask, run_dir=folder, machine=Machine(), progress=NullProgress())


# -- edits ---------------------------------------------------------------------------------


def test_every_edit_of_every_pass_is_python_or_refused() -> None:
    source, found = Source(PROBE), 0
    for edits in PASSES:
        texts = list(edits(source))
        assert texts, edits.__name__
        good = 0
        for text in texts:
            try:
                ast.parse(text)
                good += 1
            except SyntaxError:
                continue
        # An edit by positions that were a column off would break nearly everything.
        assert good >= 0.9 * len(texts), edits.__name__
        found += good
    assert found > 150


def test_positions_are_of_bytes() -> None:
    text = 'NAMES = "zwölf Öfen".split()\nx = "é" + str(12345)\n\n\ndef build(a, b, c):\n    pass\n'
    results = {t for edits in PASSES for t in edits(Source(text))}
    assert text.replace("12345", "0") in results
    assert text.replace("zwölf Öfen", "zwölf") in results
    assert text.replace('"é" + str(12345)', '"é"') in results


def test_size_goes_down_with_what_people_see() -> None:
    assert size("x = 1\n") < size("x = 10\n") < size("x = 10\ny = 2\n")
    assert size('x = "red cat".split()\n')[:2] < size('x = "afoul cat".split()\n')[:2]
    assert size("x = 1\n") < size("# said\nx = 1\n")
    assert size('"""Long words about it."""\nx = 1\n')[0] == size('"""Word."""\nx = 1\n')[0]


def test_plain_words_are_different_words() -> None:
    assert len(set(PLAIN)) == len(PLAIN) > 70
    text = 'A = "afoul red kitsch".split()\nB = "ocelot carbon".split()\n'
    made = next(plainer_words(Source(text)))
    words = [w for line in made.split('"')[1::2] for w in line.split()]
    assert len(set(words)) == 5
    assert set(words) <= set(PLAIN)
    assert "red" in words


def test_chunks_cover_everything_from_the_back() -> None:
    found = list(chunks(5))
    assert found[0] == (0, 5)
    assert set(found) >= {(i, i + 1) for i in range(5)}
    assert list(chunks(0)) == []


def test_comments_go_and_strings_stay() -> None:
    text = 'x = """\n# no comment\n\n\nend\n"""\n# a comment\n\n\n\ny = 1  # kept\n'
    assert without_comments(text) == 'x = """\n# no comment\n\n\nend\n"""\n\ny = 1  # kept\n'
    assert tidy("a = 1\ndef f():\n    pass\n") == "a = 1\n\n\ndef f():\n    pass\n"


# -- a whole shrink ------------------------------------------------------------------------


def gap_of(source: str, n: int = 60) -> tuple[float, float]:
    """Reference and artifact by the definition of the domain, on seeds nobody used."""
    space: dict[str, Any] = {}
    exec(source, space)
    right = last = 0
    for seed in range(10_000, 10_000 + n):
        made = space["build"](random.Random(seed), 60, lambda t: len(t.split()))
        numbers = [w for w in made["context"].replace(".", " ").split() if w.isdigit()]
        right += made["answer"] in numbers
        last += numbers[-1] == made["answer"]
    return right / n, last / n


def test_a_probe_gets_small_and_still_fails(whole: Base) -> None:
    report = whole.report
    assert report.confirmed
    assert report.original == PROBE
    assert report.after[0] < 0.7 * report.before[0]
    assert report.after[1] == 0, "the words that are left are plain ones"
    # What does not matter is gone, what matters is there, and a reader's copy runs.
    for gone in ("UNUSED", "spare", "# Things", "Please", "Random"):
        assert gone not in report.source
    assert "code of" in report.source
    reference, artifact = gap_of(report.source)
    assert reference == 1.0
    assert artifact < 0.3
    assert report.stopped_by == "no edit helps any more"
    # The frozen slice is what was tested; the original is untouched.
    assert read_slice(whole.path).probe.source == PROBE
    small = read_slice(whole.out / "benchmark" / "B1")
    assert small.probe.source == report.source == (whole.out / "probe.py").read_text()
    assert (len(small.open), len(small.sealed)) == (30, 8)
    assert small.about["admission"]["admitted"]
    assert report.attempts[-1].reference_lower >= 0.8
    assert report.attempts[-1].gap_lower >= 0.4
    assert f"From {report.before[0]} to {report.after[0]} parts" in report.words


def test_a_stopped_shrink_goes_on_and_pays_nothing_twice(
    programs: ProgramWorld, whole: Base, fast_path: Path
) -> None:
    stops = {whole.paid // 4, whole.paid // 2}

    def interrupt(number: int) -> None:
        if number in stops:
            stops.discard(number)
            raise KeyboardInterrupt

    programs.before = interrupt
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            shrunk(whole.path, fast_path / "cut")
    assert shrunk(whole.path, fast_path / "cut") == whole.report
    assert len(set(programs.evaluated)) == whole.paid
    assert len(programs.evaluated) <= whole.paid + 2, "an answer in flight may be lost each time"
    ours, theirs = plain_files(fast_path / "cut"), plain_files(whole.out)
    assert len(ours) > 5
    assert ours == theirs


def test_caps_are_kept_and_what_was_found_is_still_tested(
    programs: ProgramWorld, fast_path: Path
) -> None:
    tmp_path = fast_path
    report = shrunk(write_slice(tmp_path / "run"), tmp_path / "out", max_candidates=8)
    assert report.stopped_by.startswith("candidates: 8")
    assert report.tried == 8
    assert report.confirmed
    few = shrunk(tmp_path / "run/benchmark/B1", tmp_path / "few", max_evaluations=16)
    assert few.stopped_by.startswith("evaluations")


#: The line that is asked for comes last, which the artifact gets right.
HARMLESS = PROBE.replace("zip(keys, codes)", "zip(keys[::-1], codes[::-1])").replace(
    "[lines[0]]", "[lines[-1]]"
)


def test_nothing_is_called_a_break_that_fails_the_test(
    programs: ProgramWorld, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that ends with a lucky program does not get past the fresh seeds."""
    reference, artifact = gap_of(HARMLESS)
    assert reference == artifact == 1.0
    small = PROBE.replace('UNUSED = ["never", "read"]\n', "")

    def lucky(self: Shrinker, source: str, keys: object) -> None:
        self.result.steps += [Step(small, "good", 1), Step(HARMLESS, "lucky", 2)]

    monkeypatch.setattr(Shrinker, "_descend", lucky)
    path = write_slice(fast_path / "run")
    report = shrunk(path, fast_path / "once", attempts=1)
    assert [a.admitted for a in report.attempts] == [False]
    assert report.attempts[0].gap.estimate == 0.0
    assert not report.confirmed
    assert report.source == PROBE
    assert "the original stands" in report.words
    assert not (fast_path / "once" / "benchmark").exists()
    # With another attempt, the step before it is tested, at a level of its own.
    again = shrunk(path, fast_path / "twice", attempts=2)
    assert [a.admitted for a in again.attempts] == [False, True]
    assert again.attempts[1].alpha_spent == pytest.approx(again.attempts[0].alpha_spent / 4)
    assert again.source == tidy(small)
    assert again.edits == ("good",)


def test_a_slice_that_does_not_break_here_is_refused(
    programs: ProgramWorld, tmp_path: Path
) -> None:
    path = write_slice(tmp_path / "run", artifact="identity")
    with pytest.raises(UsageError, match="does not meet its criterion here"):
        shrunk(path, tmp_path / "out")
    other = write_slice(tmp_path / "other", length=60)
    shutil.copytree(other, tmp_path / "moved" / "B1")
    ask = Ask(length=80, knobs=KNOBS)
    with pytest.raises(UsageError, match="does not build the slice at 80 tokens"):
        shrink(tmp_path / "moved" / "B1", ask, run_dir=tmp_path / "x", machine=Machine(),
               progress=NullProgress())  # fmt: skip


# -- the command and the report ------------------------------------------------------------


def test_the_command(
    programs: ProgramWorld, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path = fast_path
    path = write_slice(tmp_path / "run")
    args = ["shrink", str(path), "--run-dir", str(tmp_path / "out"), "--quiet",
            "--max-candidates", "40"]  # fmt: skip
    assert gal([*args, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["confirmed"]
    assert gal(args) == 0
    shown = capsys.readouterr().out
    assert data["source"].strip() in shown
    assert "confirmed against last on arithmetic" in shown
    assert gal(["shrink", str(path), "--artifact", "identity", "--run-dir", str(tmp_path / "o2"),
                "--quiet"]) == 4  # fmt: skip
    assert gal(["shrink", str(tmp_path), "--quiet"]) == 3
    capped = ["shrink", str(path), "--run-dir", str(tmp_path / "o3"), "--max-evaluations", "1"]
    assert gal([*capped, "--quiet"]) == 1


def test_the_report_of_the_run_shows_the_small_program(
    world: Any, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from galoop.report.model import AdmissionReport, read_result
    from galoop.report.shrunk import ShrunkReport, save_shrunk

    result = read_result(base)
    one = result.slices[0]
    attempt: AdmissionReport = one.admission
    small = ShrunkReport(one.name, one.probe_key, "weak", "fake", one.source, "SMALL = '<1>'\n",
                         (9, 0, 90), (3, 0, 14), ("drop statements",), 5, 40, "", (attempt,),
                         True)  # fmt: skip
    save_shrunk(base, small)
    page, text = (base / "report.html").read_text(), (base / "report.md").read_text()
    assert "SMALL = &#39;&lt;1&gt;&#39;" in page
    assert "as it was found" in page
    assert text.index("SMALL = ") < text.index("The probe as it was found")
    assert one.source in text
    assert gal(["show", str(base), "--format", "markdown"]) == 0
    assert capsys.readouterr().out == text
    # One of another program, or a damaged one, is left aside.
    kept = base / "shrunk" / f"{one.name}.json"
    kept.write_text(kept.read_text().replace(one.probe_key, "0" * 64))
    assert read_shrunk(base, result) == {}
    kept.write_text("{")
    assert read_shrunk(base, result) == {}


def test_the_store_knows_every_step(whole: Base) -> None:
    with RunStore.open(whole.out) as store:
        events = store.events("shrink")
        assert len(events) == len(whole.report.edits)
        sizes = [tuple(e["payload"]["size"]) for e in events]
        assert sizes == sorted(sizes, reverse=True)
        assert {s.stage for s in store.spends()} == {"shrink", "confirmation"}
