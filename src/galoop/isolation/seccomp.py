"""A seccomp filter for candidates, written for the kernel's classic BPF by hand.

It is a deny list with three additions that make it tighter than one: system calls newer than the
filter do not exist, other calling conventions (i386, x32) kill the process, and files can only be
opened for reading. Threads work; processes, sockets, signals to others and every way of changing
the file system do not.

A refused call fails with an error that the candidate's Python shows as an exception; nothing is
killed, so that an honest library that merely tries (a cache folder, a telemetry socket) goes on.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

from galoop.isolation.syscalls import BY_ARGUMENT, DENIED, LAST_KNOWN

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}
_SECCOMP_SYSCALL = {"x86_64": 317, "aarch64": 277}

# struct seccomp_data: int nr; u32 arch; u64 ip; u64 args[6] (little endian: low word first).
# Every argument examined below is an int or a 32-bit flag word for the kernel, so that the low
# word is all there is to see.
_NR, _ARCH, _ARGS = 0, 4, 16

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

_X32_BIT = 0x40000000
_CLONE_THREAD = 0x00010000
# O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND: the same numbers on both architectures.
_WRITE_FLAGS = 0o3 | 0o100 | 0o1000 | 0o2000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_MM, _PR_SET_SUBREAPER = 1, 4, 35, 36
_PR_SET_PTRACER = 0x59616D61
# Commands that let a descriptor send signals to, or break leases of, other processes.
_FCNTL_DENIED = (8, 10, 15, 1024, 1026)  # F_SETOWN F_SETSIG F_SETOWN_EX F_SETLEASE F_NOTIFY
# FIOSETOWN, SIOCSPGRP and FIOASYNC do the same; TIOCSTI and TIOCLINUX type into terminals.
_IOCTL_DENIED = (0x8901, 0x8902, 0x5452, 0x5412, 0x541C)

_PR_SET_SECCOMP, _MODE_FILTER, _SET_MODE_FILTER = 22, 2, 1
_FLAG_SPEC_ALLOW = 4  # else kernels before 5.16 slow the whole process down

Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether a filter exists for this system and architecture."""
    return sys.platform == "linux" and _machine() in _AUDIT_ARCH


def _machine() -> str:
    machine = platform.machine()
    # A 32-bit interpreter on a 64-bit kernel speaks another calling convention.
    return machine if sys.maxsize > 2**32 else f"{machine} (32 bit)"


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGS + 8 * index)


def _return(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _refuse(error: int = errno.EPERM) -> Instruction:
    return _return(_ERRNO | error)


def _only_if_equal(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow when argument ``index`` is one of ``values``, refuse otherwise."""
    body = [_argument(index)]
    for value in values:
        body += [(_EQUAL, 0, 1, value), _return(_ALLOW)]
    return [*body, _refuse()]


def _unless_equal(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Refuse when argument ``index`` is one of ``values``, allow otherwise."""
    body = [_argument(index)]
    for value in values:
        body += [(_EQUAL, 0, 1, value), _refuse()]
    return [*body, _return(_ALLOW)]


def _bodies(pid: int) -> dict[str, list[Instruction]]:
    """What decides on the calls that depend on their arguments."""
    reading_only = [(_ANY_BIT, 0, 1, _WRITE_FLAGS), _refuse(errno.EROFS), _return(_ALLOW)]
    return {
        "open": [_argument(1), *reading_only],
        "openat": [_argument(2), *reading_only],
        # These two pass their flags in memory, where a filter cannot look; libraries fall back.
        "openat2": [_refuse(errno.ENOSYS)],
        "clone3": [_refuse(errno.ENOSYS)],
        "clone": [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), _return(_ALLOW), _refuse()],
        "kill": _only_if_equal(0, (pid,)),
        "tgkill": _only_if_equal(0, (pid,)),
        "prlimit64": _only_if_equal(0, (0, pid)),
        "sched_setaffinity": _only_if_equal(0, (0, pid)),
        "prctl": _unless_equal(
            0,
            (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_MM, _PR_SET_SUBREAPER, _PR_SET_PTRACER),
        ),
        "fcntl": _unless_equal(1, _FCNTL_DENIED),
        "ioctl": _unless_equal(1, _IOCTL_DENIED),
    }


def program(pid: int, machine: str | None = None) -> list[Instruction]:
    """The filter as (code, jump if true, jump if false, constant).

    Parameters
    ----------
    pid : int
        The candidate's own process number, to which it may send signals (``abort`` does).
    machine : str, optional
        ``x86_64`` or ``aarch64``; this machine by default.
    """
    machine = machine or _machine()
    column = _COLUMN[machine]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _return(_KILL_PROCESS),
        (_LOAD, 0, 0, _NR),
    ]
    if machine == "x86_64":
        code += [(_ANY_BIT, 0, 1, _X32_BIT), _return(_KILL_PROCESS)]
    code += [(_GREATER, 0, 1, LAST_KNOWN), _refuse(errno.ENOSYS)]
    bodies = _bodies(pid) | {name: [_refuse()] for name in DENIED}
    for name, numbers in (BY_ARGUMENT | DENIED).items():
        if numbers[column] >= 0:
            body = bodies[name]
            code += [(_EQUAL, 0, len(body), numbers[column]), *body]
    return [*code, _return(_ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(pid: int, libc: ctypes.CDLL) -> None:
    """Put the filter on the calling thread, for good. ``no_new_privs`` must be set.

    Raises
    ------
    OSError
        If the kernel refuses.
    """
    code = program(pid)
    data = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(data, len(data))
    prog = _Program(len(code), ctypes.cast(buffer, ctypes.c_void_p))
    number = ctypes.c_long(_SECCOMP_SYSCALL[_machine()])
    done = libc.syscall(
        number,
        ctypes.c_ulong(_SET_MODE_FILTER),
        ctypes.c_ulong(_FLAG_SPEC_ALLOW),
        ctypes.byref(prog),
    )
    if done != 0:
        zero = ctypes.c_ulong(0)
        done = libc.prctl(
            _PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(prog), zero, zero
        )
    if done != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused the seccomp filter")
