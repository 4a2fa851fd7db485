"""Holds an agent that runs without a sandbox: when its lifeline breaks, all of it is ended.

Standard library only; started as a file. ``guard.py LIFELINE ARGV…``: the descriptor LIFELINE is
the reading end of a pipe whose other end the trusted process holds, so that the agent also ends
when that process is killed.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

_PR_SET_CHILD_SUBREAPER = 36


def children() -> list[int]:
    """The processes whose parent is this one now, orphans of the agent among them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):  # noqa: PTH112, PTH208
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as f:
            if int(f.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def end(group: int) -> None:
    """Kill the agent's process group, and whatever left it, generation by generation."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(100):
        left = children()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def main() -> int:
    """Run the agent; its exit code."""
    lifeline, argv = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    agent = subprocess.Popen(argv, start_new_session=True)
    try:
        while agent.poll() is None:
            if select.select([lifeline], [], [], 0.1)[0]:
                return 137
        return agent.returncode
    finally:
        end(agent.pid)


if __name__ == "__main__":
    sys.exit(main())
