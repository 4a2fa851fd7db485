"""Progress: figures from events, plain lines, the live view, closed streams."""

from __future__ import annotations

import io
import re

import pytest

from galoop.report.progress import (
    CandidateFinished,
    CandidateStarted,
    EvaluationsDone,
    Event,
    LiveProgress,
    Message,
    NullProgress,
    PlainProgress,
    Progress,
    StageFinished,
    StageStarted,
    Tally,
    duration,
    for_stream,
)

STAGE = StageStarted("discriminator", 1, 2, "looking for what breaks A₀", 4, 100)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def finished(number: int, score: float, best: float, **options: str) -> CandidateFinished:
    return CandidateFinished(number, options.pop("state", "scored"), score, best, **options)


def test_tally_counts_what_is_left_and_when_it_ends() -> None:
    clock = Clock()
    tally = Tally(clock)
    assert tally.eta is None
    tally.see(STAGE)
    assert (tally.evaluations_left, tally.fraction, tally.eta) == (100, 0.0, None)
    clock.now += 10
    tally.see(CandidateStarted(1))
    tally.see(EvaluationsDone(20))
    tally.see(EvaluationsDone(5, cached=True))
    tally.see(finished(1, 0.2, 0.2))
    assert tally.evaluations_left == 75
    assert tally.fraction == 0.25  # both caps: 1 of 4 and 25 of 100
    assert tally.eta == pytest.approx(30.0)
    tally.see(EvaluationsDone(25))
    assert tally.fraction == 0.5  # the cap that is nearer decides
    assert tally.eta == pytest.approx(10.0)
    tally.see(EvaluationsDone(500))
    assert (tally.evaluations_left, tally.fraction, tally.eta) == (0, 1.0, 0.0)


def test_tally_starts_again_with_each_stage() -> None:
    tally = Tally(Clock())
    tally.see(STAGE)
    tally.see(finished(3, 0.5, 0.5))
    tally.see(StageStarted("report", 0, 2, "writing"))
    assert tally.best is None
    assert tally.candidate == 0
    assert tally.fraction is None
    assert tally.evaluations_left is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3725, "1:02:05")],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def plain(events: list[tuple[float, Event]]) -> list[str]:
    clock, stream = Clock(), io.StringIO()
    with PlainProgress(stream, every=5.0, clock=clock) as view:
        for seconds, event in events:
            clock.now += seconds
            view.emit(event)
    return stream.getvalue().splitlines()


def test_the_pace_of_the_latest_candidates_says_when_a_search_ends() -> None:
    clock = Clock()
    tally = Tally(clock)
    tally.see(StageStarted("generator", 1, 2, "repairing A0", candidates=40))
    clock.now += 300  # measured once, before the first candidate
    tally.see(finished(0, 0.0, 0.0))
    assert tally.eta is None, "one candidate has no pace"
    for number in range(1, 11):
        clock.now += 6
        tally.see(finished(number, 0.5, 0.5))
    assert tally.eta == pytest.approx(6.0 * (40 - 11))
    for number in range(11, 31):
        clock.now += 2
        tally.see(finished(number, 0.5, 0.5))
    assert tally.eta == pytest.approx(2.0 * (40 - 31))
    tally.see(StageStarted("generator", 2, 2, "repairing Gen-1", candidates=40))
    assert tally.eta is None, "a new stage has a pace of its own"


def test_plain_lines_hold_stage_candidate_best_left_and_eta() -> None:
    lines = plain(
        [
            (0, STAGE),
            (10, EvaluationsDone(25)),
            (0, finished(1, 0.25, 0.25, note="records, stale entries")),
            (65, StageFinished("discriminator", 1, "B1 admitted")),
            (0, Message("no sandbox", "warning")),
        ]
    )
    assert lines[0] == "[0:00] round 1/2 discriminator: looking for what breaks A₀"
    candidate = next(line for line in lines if "candidate" in line)
    assert candidate.startswith("[0:10]")
    assert "#1 0.25 (records, stale entries)" in candidate
    assert "best 0.25, 75 evaluations left, ETA 0:30" in candidate
    assert lines[-2] == "[1:15] discriminator done: B1 admitted"
    assert lines[-1] == "[1:15] warning: no sandbox"
    assert all(re.match(r"\[\d+:\d\d\] ", line) for line in lines)


def test_plain_lines_are_few_but_never_miss_a_better_candidate() -> None:
    events: list[tuple[float, Event]] = [(0, STAGE)]
    events += [(0.1, finished(i, 0.1, 0.5 if i >= 30 else 0.2)) for i in range(1, 41)]
    lines = plain(events)
    assert [re.search(r"#(\d+)", line).group(1) for line in lines[1:]] == ["1", "30"]  # type: ignore[union-attr]
    rejected = plain([(0, STAGE), (9, finished(1, 0, 0, state="invalid", reason="no\nanswer"))])
    assert "#1 invalid: no answer" in rejected[-1]


def test_lines_about_evaluations_do_not_hide_candidates() -> None:
    events: list[tuple[float, Event]] = [(0, STAGE), (1, finished(1, 0.5, 0.5))]
    events += [(20, EvaluationsDone(3)), (1, finished(2, 0.1, 0.5))]
    lines = plain(events)
    assert "evaluations left" in lines[-2]
    assert "candidate" not in lines[-2]
    assert "candidate #2 0.10" in lines[-1]


def test_a_closed_stream_does_not_end_the_run() -> None:
    stream = io.StringIO()
    view = PlainProgress(stream)
    stream.close()
    view.emit(STAGE)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_view_shows_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    clock, stream = Clock(), Terminal()
    with LiveProgress(stream, clock) as view:
        view.emit(STAGE)
        clock.now += 10
        view.emit(CandidateStarted(1))
        view.emit(EvaluationsDone(25))
        view.emit(finished(1, 0.25, 0.25, note="[records]"))
        view.emit(Message("careful [/]", "warning"))
        view.emit(StageFinished("discriminator", 1, "nothing [admitted]"))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    for words in (
        "round 1/2 discriminator: looking for what breaks A₀",
        "candidate 1/4",
        "best 0.25",
        "75 evaluations left",
        "ETA 0:30",
        "#1 0.25 ([records])",
        "careful [/]",
        "nothing [admitted]",
    ):
        assert words in text


def test_the_view_suits_the_stream() -> None:
    assert isinstance(for_stream(io.StringIO()), PlainProgress)
    assert isinstance(for_stream(Terminal()), LiveProgress)
    assert isinstance(for_stream(Terminal(), quiet=True), NullProgress)
    view: Progress = NullProgress()
    with view as entered:
        entered.emit(STAGE)
