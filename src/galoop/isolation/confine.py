"""What a forked candidate does to itself before any of its code runs.

Every step either succeeds or raises: a candidate that is not confined never starts. Steps that a
system does not have (seccomp and capabilities outside Linux) are left out, and the list of those
that were taken is returned.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Sequence

from galoop.isolation import landlock, seccomp
from galoop.isolation.contract import MEBIBYTE, Limits, Tier

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

MAX_OPEN_FILES = 512
#: Threads of one user's sandbox. Counts nothing for root, and only where the sandbox has a user
#: namespace of its own: elsewhere it would count the user's other processes.
MAX_TASKS = 1024


def _prctl(libc: ctypes.CDLL, *arguments: int) -> int:
    padded = [*arguments, 0, 0, 0, 0][:5]
    return int(libc.prctl(*(ctypes.c_ulong(a) for a in padded)))


def forbid_inspection() -> None:
    """Make this process and its forks unreadable through /proc and ptrace (Linux)."""
    if sys.platform == "linux":
        _prctl(landlock.load_libc(), _PR_SET_DUMPABLE, 0)


def forbid_new_privileges() -> None:
    """Set ``no_new_privs``, which Landlock and seccomp need."""
    if _prctl(landlock.load_libc(), _PR_SET_NO_NEW_PRIVS, 1) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")


def open_statm() -> int:
    """A descriptor of this process's memory figures, to open before /proc is out of reach.

    -1 where the system has none.
    """
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def address_space_bytes(statm: int) -> int:
    """What the process that opened ``statm`` has mapped now (VmSize); 0 where unknown."""
    if statm < 0:
        return 0
    return int(os.pread(statm, 64, 0).split()[0]) * os.sysconf("SC_PAGE_SIZE")


def detach(parent: int) -> None:
    """Own session and process group; die when the parent dies."""
    os.setsid()
    if sys.platform == "linux":
        _prctl(landlock.load_libc(), _PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # died before the line above
            os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)


def silence_descriptors(keep: Sequence[int]) -> None:
    """Point 0, 1 and 2 at /dev/null and close every other descriptor but ``keep``."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    previous = 2
    for fd in sorted(set(keep)):
        os.closerange(previous + 1, fd)
        previous = fd
    os.closerange(previous + 1, max(_open_file_limit(), previous + 1))


def _open_file_limit() -> int:
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # closerange uses close_range(2) on Linux, so that a large limit costs nothing there.
    return 2**20 if soft == resource.RLIM_INFINITY else min(soft, 2**20)


def limit_resources(limits: Limits, mapped: int, tier: Tier) -> None:
    """Set the rlimits, soft and hard.

    Parameters
    ----------
    limits : Limits
    mapped : int
        Bytes that the warm parent had mapped before the fork (VmSize), which do not count.
    tier : Tier
    """
    import resource

    def bound(which: int, value: int) -> None:
        _soft, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))

    bound(resource.RLIMIT_CORE, 0)
    bound(resource.RLIMIT_FSIZE, limits.output_bytes)
    bound(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if sys.platform == "linux":
        if not mapped:
            raise OSError("the memory limit cannot be set: /proc is not mounted")
        bound(resource.RLIMIT_AS, mapped + limits.memory_mb * MEBIBYTE)
        if tier is Tier.BUBBLEWRAP:
            bound(resource.RLIMIT_NPROC, MAX_TASKS)
    else:  # no seccomp here: at least no further processes of this user
        bound(resource.RLIMIT_NPROC, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # too much written: an error, not a signal


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up all capabilities, so that root is no more than the owner of its files."""
    for capability in range(_LAST_CAPABILITY + 1):
        if _prctl(libc, _PR_CAPBSET_DROP, capability) != 0:
            break  # past the last one that the kernel knows, or not privileged to begin with
    _prctl(libc, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    number = _CAPSET[os.uname().machine]
    done = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(header),
        ctypes.c_char_p(struct.pack("=6I", *[0] * 6)),
    )
    if done != 0:
        raise OSError(ctypes.get_errno(), "capabilities were not dropped")


def confine(limits: Limits, mapped: int, tier: Tier) -> list[str]:
    """Take every step for the calling process; return the names of those taken.

    Raises
    ------
    OSError
        If a step that the system has fails: the candidate must not start.
    """
    taken = ["limits"]
    limit_resources(limits, mapped, tier)
    if sys.platform != "linux":
        return taken
    libc = landlock.load_libc()
    forbid_new_privileges()
    taken.append("no new privileges")
    if os.uname().machine in _CAPSET:
        _drop_capabilities(libc)
        taken.append("no capabilities")
    version = landlock.forbid_writing(libc)
    if version:
        taken.append(f"landlock {version}")
    if seccomp.supported():
        seccomp.install(os.getpid(), libc)
        taken.append("seccomp")
    else:
        taken.append(f"NO seccomp filter for {os.uname().machine}")
    return taken
