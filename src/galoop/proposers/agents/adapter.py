"""What differs between coding agents: how one is called, and how its output is read."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

#: Longest final text that is kept, in characters.
MAX_TEXT = 4000


@dataclass(frozen=True)
class Job:
    """One agent session, as the agent's command line needs to know it.

    Attributes
    ----------
    prompt : str
        The first message; it points to the task file.
    program : str
        Absolute path of the program to start (see :attr:`Adapter.program`).
    worktree, home, tools : str
        Absolute folders, as the agent sees them.
    task : str
        Absolute path of the task file, as the agent sees it.
    model : str
        Empty: the agent's own default.
    arguments : tuple of str
        Further arguments of the experiment file.
    seconds : float
        Wall-clock limit of the session.
    max_dollars : float or None
        What is left of the search's cap, for agents that can hold to one themselves.
    sandboxed : bool
        Whether the whole agent runs in a sandbox of ours, so that it needs none of its own.
    """

    prompt: str
    program: str
    worktree: str
    home: str
    tools: str
    task: str
    model: str = ""
    arguments: tuple[str, ...] = ()
    seconds: float = 3600.0
    max_dollars: float | None = None
    sandboxed: bool = False


@dataclass
class Reading:
    """What an agent's output says so far: running totals. Its claims about scores are not read.

    Attributes
    ----------
    input_tokens, output_tokens : int
    dollars : float or None
        None while the agent has not said.
    text : str
        Its last message.
    error : str
        The last error that it reported.
    finished : bool
        Whether it reported its end.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None
    text: str = ""
    error: str = ""
    finished: bool = False


class Parser(ABC):
    """Reads an agent's event stream: one JSON object a line. Never raises on what it is fed."""

    def __init__(self) -> None:
        self.reading = Reading()

    def feed(self, line: bytes) -> None:
        """Take one line of standard output; what is not understood is left out."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            self.other(line.decode("utf-8", "replace").strip())
            return
        if isinstance(event, dict):
            try:
                self.event(event)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                return  # a known type of another shape: later versions may do that
        self.reading.text = self.reading.text[-MAX_TEXT:]
        self.reading.error = self.reading.error[:MAX_TEXT]

    @abstractmethod
    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event."""

    def other(self, line: str) -> None:  # noqa: B027 - most agents print nothing else
        """Take a line that is no JSON."""


class Adapter(ABC):
    """One coding agent.

    Attributes
    ----------
    name : str
    program : str
        The executable to look for; the experiment file's ``agent.command`` wins over it.
    bundled : tuple of (str, str)
        A Python package that brings the program along, and its place in it, used where the program
        is not on the path.
    keys : tuple of str
        Environment variables with the credentials that it may see; no other gets in.
    addresses : tuple of str
        Environment variables that say where its model is and are no secret.
    leavings : frozenset of str
        Names at the top of a worktree that the agent itself writes; they are overlooked.
    files : tuple of str
        Scripts of this folder that it needs among its tools.
    """

    name: ClassVar[str]
    program: ClassVar[str] = ""
    bundled: ClassVar[tuple[str, str] | None] = None
    keys: ClassVar[tuple[str, ...]] = ()
    addresses: ClassVar[tuple[str, ...]] = ()
    leavings: ClassVar[frozenset[str]] = frozenset()
    files: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def argv(self, job: Job) -> list[str]:
        """The command line; ``job.program`` comes first."""

    @abstractmethod
    def parser(self) -> Parser:
        """A fresh reader of the output."""

    def stdin(self, job: Job) -> bytes:
        """What the program reads from its standard input."""
        return job.prompt.encode("utf-8")

    def environment(self, job: Job) -> dict[str, str]:
        """Further environment variables, without credentials."""
        return {}


@dataclass
class Bill:
    """Turns an agent's running totals into costs of one proposal after another."""

    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0

    def since(self, reading: Reading) -> tuple[int, int, float]:
        """Tokens in and out and dollars since the last call; never negative."""
        spent = (
            max(0, reading.input_tokens - self.input_tokens),
            max(0, reading.output_tokens - self.output_tokens),
            max(0.0, (reading.dollars or 0.0) - self.dollars),
        )
        self.input_tokens = max(self.input_tokens, reading.input_tokens)
        self.output_tokens = max(self.output_tokens, reading.output_tokens)
        self.dollars = max(self.dollars, reading.dollars or 0.0)
        return spent

    def after(self, reading: Reading) -> Bill:
        """The totals once ``reading`` is taken in; this one stays as it is."""
        copy = replace(self)
        copy.since(reading)
        return copy


def count(usage: Mapping[str, Any], *names: str) -> int:
    """The sum of token counts in a usage record; what is absent, negative or no number is 0."""
    total = 0
    for name in names:
        value = usage.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
            total += int(value)
    return total


def money(value: Any) -> float | None:
    """A sum in dollars, or None for what is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6:
        return float(value)
    return None
