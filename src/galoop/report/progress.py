"""What a run is doing now: typed events and the places that show them.

The loop emits events; an implementation shows them: live on a terminal, as plain timestamped lines
elsewhere, or not at all. Nothing else in galoop writes to the terminal while a run goes on.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Latest candidates whose pace the time left is reckoned by.
_PACE = 12


@dataclass(frozen=True)
class StageStarted:
    """A stage began.

    Attributes
    ----------
    stage : str
        ``discriminator``, ``admission``, ``generator``, ``gate``, ``report``, ``prepare``.
    round : int
        1, 2, …; 0 outside the rounds.
    rounds : int
    title : str
        In words: "looking for what breaks Gen-1".
    candidates : int or None
        Most candidates of the stage; None where it has none.
    evaluations : int or None
        Most evaluations of the stage (its cap or its plan); None: unknown.
    """

    stage: str
    round: int
    rounds: int
    title: str
    candidates: int | None = None
    evaluations: int | None = None


@dataclass(frozen=True)
class CandidateStarted:
    """Candidate ``number`` (1, 2, …) is about to be evaluated."""

    number: int
    note: str = ""


@dataclass(frozen=True)
class CandidateFinished:
    """Candidate ``number`` was evaluated; ``best`` is the best score of the stage so far.

    Scores are gaps for the discriminator and accuracies for the generator.
    """

    number: int
    state: str
    score: float
    best: float
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class EvaluationsDone:
    """``count`` more evaluations were made (or found in the store, when ``cached``)."""

    count: int
    cached: bool = False


@dataclass(frozen=True)
class StageFinished:
    """The stage ended; ``words`` say with what."""

    stage: str
    round: int
    words: str


@dataclass(frozen=True)
class Message:
    """A line for the reader: a note or a warning."""

    text: str
    level: Literal["info", "warning"] = "info"


Event = (
    StageStarted | CandidateStarted | CandidateFinished | EvaluationsDone | StageFinished | Message
)


class Progress(Protocol):
    """Shows events. Used as a context manager around a run."""

    def emit(self, event: Event) -> None:
        """Show ``event``. Never raises on account of the terminal."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class NullProgress:
    """Shows nothing."""

    def emit(self, event: Event) -> None:
        """Drop ``event``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class Tally:
    """The figures of the stage in progress, kept from its events.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.stage: StageStarted | None = None
        self._finishes: deque[float] = deque(maxlen=_PACE)
        self.began = clock()
        self.stage_began = self.began
        self.candidate = 0
        self.finished = 0
        self.best: float | None = None
        self.evaluations = 0
        self.cached = 0
        self.last = ""

    def see(self, event: Event) -> None:
        """Take ``event`` into account."""
        match event:
            case StageStarted():
                self.stage, self.stage_began = event, self._clock()
                self.candidate = self.finished = self.evaluations = self.cached = 0
                self.best, self.last = None, ""
                self._finishes.clear()
            case CandidateStarted():
                self.candidate = event.number
            case CandidateFinished():
                self.finished += 1
                self._finishes.append(self._clock())
                self.candidate = max(self.candidate, event.number)
                self.best = event.best
                self.last = outcome_words(event)
            case EvaluationsDone():
                if event.cached:
                    self.cached += event.count
                else:
                    self.evaluations += event.count
            case StageFinished() | Message():
                pass

    @property
    def evaluations_left(self) -> int | None:
        """Evaluations that the stage may still make; None: unknown."""
        if self.stage is None or self.stage.evaluations is None:
            return None
        return max(0, self.stage.evaluations - self.evaluations - self.cached)

    @property
    def fraction(self) -> float | None:
        """How far the stage is, from 0 to 1; None while unknown.

        The larger of the shares of candidates and of evaluations: the stage ends at the first cap.
        """
        if self.stage is None:
            return None
        shares = []
        if self.stage.candidates:
            shares.append(self.finished / self.stage.candidates)
        if self.stage.evaluations:
            shares.append((self.evaluations + self.cached) / self.stage.evaluations)
        return min(1.0, max(shares)) if shares else None

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self.began

    @property
    def eta(self) -> float | None:
        """Seconds until the stage reaches its first cap; None while unknown.

        By the pace of the latest candidates where there are some: the first one of a stage may
        wait for what is measured once, and one that is rejected costs next to nothing.
        """
        if self.stage is None:
            return None
        left = []
        if self.stage.candidates and len(self._finishes) > 1:
            pace = (self._finishes[-1] - self._finishes[0]) / (len(self._finishes) - 1)
            left.append(pace * max(0, self.stage.candidates - self.finished))
        done = self.evaluations + self.cached
        if self.stage.evaluations and done:
            share = min(1.0, done / self.stage.evaluations)
            left.append((self._clock() - self.stage_began) * (1.0 - share) / share)
        return min(left) if left else None


def duration(seconds: float | None) -> str:
    """``75`` -> ``1:15``; None -> ``-``."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def outcome_words(event: CandidateFinished) -> str:
    """One candidate in a few words."""
    found = f"{event.score:.2f}" if event.state == "scored" else event.state
    why = f": {event.reason}" if event.reason else ""
    note = f" ({event.note})" if event.note else ""
    return f"#{event.number} {found}{why}{note}"


def stage_words(event: StageStarted) -> str:
    """A stage in a few words: ``round 1/2 discriminator: looking for …``."""
    where = f"round {event.round}/{event.rounds} " if event.round else ""
    return f"{where}{event.stage}: {event.title}"


class PlainProgress:
    """One timestamped line an event that matters; for logs and CI.

    Parameters
    ----------
    stream : TextIO
    every : float
        Least seconds between two lines about candidates that did not improve.
    clock : callable
    """

    def __init__(
        self, stream: TextIO, every: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._tally = Tally(clock)
        self._last_line = self._last_candidate = float("-inf")
        self._best: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def emit(self, event: Event) -> None:
        """Write a line when the event is worth one."""
        self._tally.see(event)
        match event:
            case StageStarted():
                self._best = None
                self._line(stage_words(event))
            case CandidateFinished():
                better = self._best is None or event.best > self._best
                if better or self._clock() - self._last_candidate >= self._every:
                    self._best, self._last_candidate = event.best, self._clock()
                    self._line(self._candidate_words(event))
            case StageFinished():
                self._line(f"{event.stage} done: {event.words}")
            case Message():
                self._line(f"warning: {event.text}" if event.level == "warning" else event.text)
            case EvaluationsDone():
                if self._clock() - self._last_line >= 2 * self._every:
                    self._line(self._figures())
            case CandidateStarted():
                pass

    def _candidate_words(self, event: CandidateFinished) -> str:
        return f"candidate {outcome_words(event)}; {self._figures()}"

    def _figures(self) -> str:
        tally = self._tally
        parts = [] if tally.best is None else [f"best {tally.best:.2f}"]
        if tally.evaluations_left is not None:
            parts.append(f"{tally.evaluations_left} evaluations left")
        elif tally.evaluations:
            parts.append(f"{tally.evaluations} evaluations")
        if tally.eta is not None:
            parts.append(f"ETA {duration(tally.eta)}")
        return ", ".join(parts) or "working"

    def _line(self, text: str) -> None:
        self._last_line = self._clock()
        line = f"[{duration(self._tally.elapsed)}] {' '.join(text.split())}"
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe must not end the run
            return


class LiveProgress:
    """A live view on a terminal: the stage, a bar, the figures; finished stages stay above it."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._tally = Tally(clock)
        self._console = Console(file=stream)
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def emit(self, event: Event) -> None:
        """Update the view; what is finished is printed above it."""
        from rich.text import Text

        self._tally.see(event)
        clock = duration(self._tally.elapsed)
        if isinstance(event, StageStarted):
            self._console.print(Text(f"{clock:>7}  {stage_words(event)}", style="bold"))
        elif isinstance(event, StageFinished):
            self._console.print(Text(f"{clock:>7}    {event.words}", style="green"))
        elif isinstance(event, Message):
            style = "yellow" if event.level == "warning" else "dim"
            self._console.print(Text(f"{clock:>7}  {event.text}", style=style))

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tally = self._tally
        if tally.stage is None:
            return Text("starting", style="dim")
        grid = Table.grid(padding=(0, 2))
        share = tally.fraction
        bar = ProgressBar(
            total=1.0, completed=share or 0.0, width=28, pulse=share is None, animation_time=None
        )
        of = f"/{tally.stage.candidates}" if tally.stage.candidates else ""
        candidate = f"candidate {tally.candidate}{of}" if tally.candidate else ""
        best = f"best {tally.best:.2f}" if tally.best is not None else ""
        left = tally.evaluations_left
        evaluations = (
            f"{left} evaluations left" if left is not None else f"{tally.evaluations} evaluations"
        )
        eta = f"ETA {duration(tally.eta)}"
        grid.add_row(duration(tally.elapsed).rjust(7), bar, candidate, best, evaluations, eta)
        last = Text(f"         {tally.last}", style="dim", overflow="ellipsis", no_wrap=True)
        return Group(grid, last)


def for_stream(stream: TextIO | None = None, quiet: bool = False) -> Progress:
    """The progress view that suits ``stream`` (stderr by default)."""
    stream = stream if stream is not None else sys.stderr
    if quiet:
        return NullProgress()
    if stream.isatty():
        return LiveProgress(stream)
    return PlainProgress(stream)
