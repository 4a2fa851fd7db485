"""A running agent: its output read as it comes and kept within bounds, its end enforced."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from galoop.errors import InfrastructureError
from galoop.proposers.agents.adapter import Parser

#: Of standard output, this much goes to the transcript; the rest is read, parsed and dropped.
MAX_TRANSCRIPT = 16 * 1024 * 1024
#: An agent that prints more than this is ended.
MAX_OUTPUT = 256 * 1024 * 1024
_MAX_LINE = 4 * 1024 * 1024
_TAIL = 4000
_KILL_SECONDS = 10.0


class AgentProcess:
    """Starts an agent and reads what it prints.

    Parameters
    ----------
    argv : sequence of str
        The whole command line (with the sandbox's).
    environment : mapping
        All that it inherits.
    folder : Path
        Working folder.
    stdin : bytes
    parser : Parser
    transcript : Path
        Standard output is written there, without the credentials' values.
    secrets : sequence of str
    guarded : bool
        Whether to start it under :mod:`galoop.proposers.agents.guard`, because there is no sandbox
        that ends with this process.

    Attributes
    ----------
    flooded : bool
        Whether it printed more than :data:`MAX_OUTPUT`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        stdin: bytes,
        parser: Parser,
        transcript: Path,
        secrets: Sequence[str] = (),
        guarded: bool = False,
    ) -> None:
        self.parser = parser
        self.flooded = False
        self._guarded = guarded
        self._secrets = [secret.encode("utf-8") for secret in secrets]
        self._transcript = transcript
        self._tail = b""
        lifeline, self._lifeline = os.pipe()
        line = [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), str(lifeline)]
        try:
            self._popen = subprocess.Popen(
                [*(line if guarded else ()), *argv],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[lifeline] if guarded else (),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._lifeline)
            raise InfrastructureError(f"agent {argv[0]} could not be started: {error}") from error
        finally:
            os.close(lifeline)
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._threads = [
            threading.Thread(target=_write, args=(self._popen.stdin, stdin), daemon=True),
            threading.Thread(target=self._read_output, args=(self._popen.stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._popen.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._popen.poll()

    def last_words(self) -> str:
        """The end of its error stream, without the credentials' values."""
        return self._clean(self._tail)[-_TAIL:].decode("utf-8", "replace").strip()

    def end(self, patience: float = 0.0) -> None:
        """Wait ``patience`` seconds for it to end by itself, then kill all of it; idempotent."""
        if patience > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(patience)
        if self._lifeline >= 0:
            os.close(self._lifeline)  # a guard now ends what it holds
            self._lifeline = -1
            if self._guarded:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(_KILL_SECONDS)
        if self.running:
            with contextlib.suppress(OSError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        for thread in self._threads:
            thread.join(_KILL_SECONDS)
        for stream in (self._popen.stdout, self._popen.stderr):
            assert stream is not None
            stream.close()

    def _clean(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, b"[credential]")
        return data

    def _read_output(self, stream: IO[bytes]) -> None:
        total, line, dropping = 0, b"", False
        with open(self._transcript, "wb") as transcript:
            while chunk := os.read(stream.fileno(), 65536):
                total += len(chunk)
                if total > MAX_OUTPUT:  # not read any more, it blocks until it is ended
                    self.flooded = True
                    return
                first, *rest = chunk.split(b"\n")
                line, dropping = _longer(line, first, dropping)
                for following in rest:
                    if not dropping:
                        self._take(line, transcript)
                    line, dropping = _longer(b"", following, False)
            if line and not dropping:
                self._take(line, transcript)

    def _take(self, line: bytes, transcript: IO[bytes]) -> None:
        line = self._clean(line)
        self.parser.feed(line)
        if transcript.tell() + len(line) < MAX_TRANSCRIPT:
            with contextlib.suppress(OSError):  # a full disk is reported by the store
                transcript.write(line + b"\n")
                transcript.flush()

    def _read_errors(self, stream: IO[bytes]) -> None:
        while chunk := os.read(stream.fileno(), 65536):
            self._tail = (self._tail + chunk)[-2 * _TAIL :]  # cut again once it is clean


def _longer(line: bytes, more: bytes, dropping: bool) -> tuple[bytes, bool]:
    """A line with more of it, or nothing once it is too long."""
    if dropping or len(line) + len(more) > _MAX_LINE:
        return b"", True
    return line + more, False


def _write(stream: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError):  # it may not read it
        stream.write(data)
    with contextlib.suppress(OSError):
        stream.close()
