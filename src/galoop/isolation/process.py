"""The sandbox's outer process: how it is started, kept alive and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile

from galoop.errors import IsolationError
from galoop.isolation import bubblewrap
from galoop.isolation.contract import Tier
from galoop.isolation.view import View

_CLOSE_SECONDS = 5.0
_LAST_WORDS_BYTES = 2000

# All that the sandbox inherits: no variable of the trusted process gets in.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "USER": "galoop",  # getpass.getuser() has no password file to look in
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Progress bars and concurrent loading leave threads behind, which do not survive a fork.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp",  # made when torch is imported; this one is there already
    "CUDA_VISIBLE_DEVICES": "",  # a forked child cannot use CUDA anyway
}


class SandboxProcess:
    """The sandbox's outer process with the three descriptors that keep it alive.

    Separate from :class:`~galoop.isolation.ForkServer` so that the finaliser of the latter can
    hold it.

    Parameters
    ----------
    tier : Tier
    view : View
        What it may read; enforced here for bubblewrap, by the server itself for Landlock.

    Attributes
    ----------
    control : socket.socket
        The trusted end of the connection to the server.
    popen : subprocess.Popen
    """

    def __init__(self, tier: Tier, view: View) -> None:
        self.control, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in kill()
        fds = [theirs.fileno(), lifeline]
        inner = [sys.executable, "-P", "-m", "galoop.isolation.server", *map(str, fds)]
        try:
            command = bubblewrap.command(view, inner) if tier is Tier.BUBBLEWRAP else inner
            self.popen = subprocess.Popen(
                command,
                env=_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(view.python_path)},
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,  # a terminal's interrupt must not reach the sandbox
                cwd="/",
            )
        except OSError as error:
            self.control.close()
            os.close(self._lifeline)
            raise IsolationError(f"the sandbox could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(lifeline)

    def kill(self) -> None:
        """End everything in the sandbox; idempotent."""
        if self.control.fileno() < 0:
            return
        with contextlib.suppress(OSError):  # wakes a thread that waits for an answer
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        os.close(self._lifeline)  # the kernel now kills the server, whatever it is doing
        try:
            self.popen.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        self._stderr.close()

    def last_words(self) -> str:
        """The end of what the server wrote to its error stream."""
        if self._stderr.closed:
            return ""
        fd = self._stderr.fileno()
        start = max(0, os.fstat(fd).st_size - _LAST_WORDS_BYTES)
        return os.pread(fd, _LAST_WORDS_BYTES, start).decode("utf-8", "replace").strip()
