"""One writer a run folder: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from galoop.errors import StoreError


class FolderLock:
    """An exclusive ``flock`` on a file, which holds the holder's process number meanwhile.

    ``flock`` belongs to the open file, so that two stores of one process exclude each other too.
    A forked child would share it and keep it alive after its parent was killed: the child
    therefore closes its copy at once.

    Parameters
    ----------
    path : Path
        The lock file; made if absent, kept (empty) afterwards, because removing it would let two
        processes lock two different files of that name.

    Raises
    ------
    StoreError
        If somebody else holds it; the message names the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor: int | None = os.open(path, flags, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            self._forget()
            raise StoreError(
                f"run folder {path.parent} is in use by process {holder or '(unknown)'}",
                "wait until it ends, stop it, or choose another run folder",
            ) from None
        except OSError:
            self._forget()
            raise
        self._write(f"{os.getpid()}\n")
        ref = weakref.ref(self)

        def in_child() -> None:
            lock = ref()
            if lock is not None:
                lock._forget()

        os.register_at_fork(after_in_child=in_child)

    @property
    def held(self) -> bool:
        """Whether this process holds it; false in a forked child."""
        return self._descriptor is not None

    def _write(self, text: str) -> None:
        """Say who holds it. On a full disk the lock holds all the same."""
        if self._descriptor is not None:
            try:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, text.encode("ascii"), 0)
            except OSError:
                pass

    def _forget(self) -> None:
        """Close this process's copy of the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def release(self) -> None:
        """Empty the file (so that it is the same after every run) and let go."""
        self._write("")
        self._forget()
