"""OpenEvolve 0.4.1 as a search engine, in a subprocess that decides and does nothing else.

OpenEvolve chooses the program that is changed next and the programs that stay: MAP-Elites grids on
three islands with an archive and migration. It asks over a socket for a child of a program; this
side asks the proposer in our seat, evaluates, and tells it the child's text and figures. So caps,
ledger, store and resume are ours, and resume is replay: its draws follow from the seed and from
what it is told. Its prompts, caches, budgets, checkpoints and its own resume are not used.

The axes of its grid are the length of the program and a behaviour: the value of the first objective
(probes: the accuracy of the reference; artifacts: that on the oldest slice), or, where that would
be the score itself, the distance from the other programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Any

from galoop.errors import InfrastructureError, UsageError
from galoop.proposers.protocol import Evaluated
from galoop.search.protocol import Problem, StopSearch
from galoop.search.seat import EngineSeat, best_first
from galoop.types import State

VERSION = "0.4.1"
ISLANDS = 3
#: Programs that most parents are drawn from: a tenth of a search of sixty, as OpenEvolve's own 100
#: are a tenth of its population. With 100, every program would be in it.
ARCHIVE = 6
#: Generations of an island between two migrations, instead of 50 for the same reason.
MIGRATION = 10

_PROCESS = Path(__file__).with_name("_openevolve_process.py")
#: Seconds that it may think about one parent; it needs milliseconds, its start some seconds.
_PATIENCE = 300.0
_LONGEST_LINE = 4096
_KEPT_WORDS = 20


class OpenEvolveSearch:
    """MAP-Elites on islands of OpenEvolve 0.4.1 (extra `openevolve`), in a subprocess."""

    name = "openevolve"

    def run(self, problem: Problem) -> str:
        """Run until the problem says stop.

        Raises
        ------
        UsageError
            OpenEvolve is not installed, or in another version.
        InfrastructureError
            Its process failed, or said what it must not say.
        """
        _check_installed()
        seat = EngineSeat(problem)
        behaviour = problem.objectives[0] if len(problem.objectives) > 1 else ""
        try:
            begun = best_first(seat.start())
            kept = [one for one in begun if one.feedback.state is State.SCORED]
            programs = [_shown(one, behaviour) for one in kept[:ISLANDS] or begun[:1]]
            with EngineProcess() as engine:
                engine.send(
                    {
                        "seed": problem.seed % 2**32,
                        "programs": programs,
                        "features": ["complexity", "behaviour" if behaviour else "diversity"],
                        "islands": ISLANDS,
                        "archive": ARCHIVE,
                        "migration": MIGRATION,
                    }
                )
                while True:
                    parent = _parent(seat, engine.receive())
                    made = seat.propose(parent)
                    known = seat.known(made.key) is not None
                    told = _shown(seat.evaluate(made), behaviour)
                    # Neither failures nor what it has already may fill its archive.
                    engine.send({**told, "keep": told["keep"] and not known})
        except StopSearch as stop:
            return stop.reason


def _check_installed() -> None:
    try:
        found = version("openevolve")
    except PackageNotFoundError:
        raise UsageError(
            "the search 'openevolve' needs the package openevolve",
            "pip install 'galoop[openevolve]'",
        ) from None
    if found != VERSION:
        raise UsageError(
            f"the search 'openevolve' is written for openevolve {VERSION}; {found} is installed",
            "pip install 'galoop[openevolve]'",
        )


def _parent(seat: EngineSeat, message: dict[str, Any]) -> Evaluated:
    """The program that it names; it can name none but those that were evaluated here."""
    name = message.get("parent")
    parent = seat.known(name) if isinstance(name, str) else None
    if parent is None:
        raise InfrastructureError(f"OpenEvolve asked for a child of an unknown program: {name!r}")
    return parent


def _shown(one: Evaluated, behaviour: str) -> dict[str, Any]:
    """All that OpenEvolve is told of a program: text, length, score and the behaviour axis."""
    files = one.candidate.files
    text = "\n".join(f"{path}\n{files[path]}" for path in sorted(files))
    metrics = {"combined_score": one.feedback.score}
    if behaviour:
        metrics["behaviour"] = float(one.feedback.objectives[behaviour])
    return {
        "text": f"{one.candidate.key}\n{text}",
        "metrics": metrics,
        "keep": one.feedback.state is State.SCORED,
    }


class EngineProcess:
    """The subprocess with its line; leaving the context kills it.

    Its environment holds no variable of ours but the search path of modules: no key, no proxy, no
    home. Nothing is left behind: it writes no files, ends when its line closes (this process ended,
    in whatever way), and Linux kills it with this process even while it is busy.
    """

    def __init__(self, program: Path = _PROCESS, patience: float = _PATIENCE) -> None:
        self._program = program
        self._patience = patience
        self._rest = b""
        self._words: deque[str] = deque(maxlen=_KEPT_WORDS)

    def __enter__(self) -> EngineProcess:
        self._line, theirs = socket.socketpair()
        self._line.settimeout(self._patience)
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(self._program), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._reader = Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=5.0)

    def _listen(self, stream: IO[bytes]) -> None:
        """Keep the last words; what is not read would block it."""
        with stream:
            while chunk := stream.readline(_LONGEST_LINE):
                self._words.append(chunk.decode("utf-8", "replace").strip())

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        try:
            self._line.sendall(json.dumps(message).encode("utf-8") + b"\n")
        except TimeoutError:
            raise self._failure(f"did not listen for {self._patience:g} s") from None
        except OSError:
            raise self._failure("ended by itself") from None

    def receive(self) -> dict[str, Any]:
        """The next message.

        Raises
        ------
        InfrastructureError
            It ended, said nothing for too long, or said what is no message.
        """
        while b"\n" not in self._rest:
            if len(self._rest) > _LONGEST_LINE:
                raise self._failure("sent a line that is too long")
            try:
                more = self._line.recv(_LONGEST_LINE)
            except TimeoutError:
                raise self._failure(f"said nothing for {self._patience:g} s") from None
            except ConnectionError:
                more = b""
            if not more:
                raise self._failure("ended by itself")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise self._failure(f"sent what is no message: {line[:80]!r}")
        return message

    def _failure(self, what: str) -> InfrastructureError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        self._reader.join(timeout=0.2)
        code = self._process.poll()
        ended = f" (exit {code})" if code is not None else ""
        words = next((w for w in reversed(list(self._words)) if w), "")
        said = f": {words[:300]}" if words else ""
        return InfrastructureError(f"OpenEvolve's process {what}{ended}{said}")
