"""Landlock through its three system calls: allow-lists of paths, no TCP, no signals outward.

Rights and numbers are those of ``linux/landlock.h`` up to ABI 7; what the running kernel does not
know is left out, so that older kernels confine as much as they can. (The package of that name on
PyPI covers the file rights of ABI 3 only and is a development release; this is shorter.)
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FS_FIRST_ABI = (1 << 13) - 1
_REFER, TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_NET_BIND_CONNECT = 0b11
_SCOPE_ABSTRACT_SOCKET_AND_SIGNAL = 0b11
#: Everything but reading: what the layer on top of each candidate handles, without exceptions.
_NOT_READING = ~(READ_FILE | READ_DIR)
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | _IOCTL_DEV


def load_libc() -> ctypes.CDLL:
    """The C library of this process, with errno."""
    return ctypes.CDLL(None, use_errno=True)


def abi(libc: ctypes.CDLL | None = None) -> int:
    """The kernel's Landlock ABI; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    version = (libc or load_libc()).syscall(
        ctypes.c_long(_CREATE_RULESET),
        ctypes.c_void_p(None),
        ctypes.c_size_t(0),
        ctypes.c_uint32(_CREATE_VERSION),
    )
    return max(0, int(version))


def _file_rights(version: int) -> int:
    rights = _FS_FIRST_ABI
    rights |= _REFER if version >= 2 else 0
    rights |= TRUNCATE if version >= 3 else 0
    rights |= _IOCTL_DEV if version >= 5 else 0
    return rights


def _ruleset(libc: ctypes.CDLL, version: int, handled: int) -> int:
    fields = [handled]
    if version >= 4:
        fields.append(_NET_BIND_CONNECT)
    if version >= 6:
        fields.append(_SCOPE_ABSTRACT_SOCKET_AND_SIGNAL)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    fd = libc.syscall(
        ctypes.c_long(_CREATE_RULESET),
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
        ctypes.c_uint32(0),
    )
    if fd < 0:
        raise OSError(ctypes.get_errno(), "Landlock: no ruleset")
    return int(fd)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - plain strings travel here
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, fd)
        done = libc.syscall(
            ctypes.c_long(_ADD_RULE),
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.c_char_p(rule),
            ctypes.c_uint32(0),
        )
        if done != 0:
            raise OSError(ctypes.get_errno(), "Landlock: no rule", path)
    finally:
        os.close(fd)


def _restrict(libc: ctypes.CDLL, ruleset: int) -> None:
    done = libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint32(0))
    if done != 0:
        raise OSError(ctypes.get_errno(), "Landlock: not restricted")


def restrict_to(
    readable: Sequence[str], listable: Sequence[str], writable: Sequence[str] = ()
) -> int:
    """Confine this thread and its later children for good; return the ABI used.

    Parameters
    ----------
    readable : sequence of str
        Files and folders to read. Nothing may be executed (mapping libraries needs no right).
    listable : sequence of str
        Folders whose listing, but not whose files, may be read.
    writable : sequence of str
        Device files to read and write.

    Raises
    ------
    OSError
        If the kernel has no Landlock or refuses. ``no_new_privs`` must be set.
    """
    libc = load_libc()
    version = abi(libc)
    if version < 1:
        raise OSError("Landlock: not in this kernel, or not switched on")
    handled = _file_rights(version)
    ruleset = _ruleset(libc, version, handled)
    try:
        for path in readable:
            _allow(libc, ruleset, path, READ_FILE | READ_DIR)
        for path in listable:
            _allow(libc, ruleset, path, READ_DIR)
        for path in writable:
            _allow(libc, ruleset, path, (READ_FILE | WRITE_FILE | TRUNCATE) & handled)
        _restrict(libc, ruleset)
    finally:
        os.close(ruleset)
    return version


def forbid_writing(libc: ctypes.CDLL) -> int:
    """A second layer for one candidate: no writing anywhere, no signals to its parent.

    Returns the ABI used, 0 where the kernel has no Landlock.
    """
    version = abi(libc)
    if version < 1:
        return 0
    ruleset = _ruleset(libc, version, _file_rights(version) & _NOT_READING)
    try:
        _restrict(libc, ruleset)
    finally:
        os.close(ruleset)
    return version
