"""The parts of the isolation one by one, against independent references."""

from __future__ import annotations

import errno
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from galoop.errors import IsolationError
from galoop.isolation import ForkServer, Limits, Tier, bubblewrap, memory, tiers, view, wire
from galoop.isolation.output import _RingBytes, _RingText, read_tail, ring_size
from galoop.isolation.seccomp import program
from galoop.isolation.syscalls import BY_ARGUMENT, DENIED, LAST_KNOWN

# -- seccomp: the filter run by a small interpreter of classic BPF ------------------------------

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4321


def run_filter(machine: str, number: int, arguments: tuple[int, ...] = (), arch: int = 0) -> str:
    """What the kernel would do: "allow", "kill" or the name of an errno."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<iIQ6Q", number, arch or ARCH[machine], 0, *padded)
    code, position, accumulator = program(PID, machine), 0, 0
    while True:
        operation, if_true, if_false, constant = code[position]
        position += 1
        if operation == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif operation == 0x06:  # BPF_RET | BPF_K
            action, value = constant & 0xFFFF0000, constant & 0xFFFF
            return {0x7FFF0000: "allow", 0x80000000: "kill"}.get(action) or errno.errorcode[value]
        else:
            taken = {
                0x15: accumulator == constant,  # BPF_JEQ
                0x25: accumulator > constant,  # BPF_JGT
                0x45: bool(accumulator & constant),  # BPF_JSET
            }[operation]
            position += if_true if taken else if_false


# From the kernel's tables, by hand; not from the module under test.
NUMBERS = {
    "x86_64": {"read": 0, "mmap": 9, "mprotect": 10, "madvise": 28, "sendto": 44, "recvmsg": 47}
    | {"socket": 41, "clone": 56, "execve": 59, "kill": 62, "openat": 257, "prlimit64": 302}
    | {"memfd_create": 319, "clone3": 435, "futex": 202, "exit_group": 231, "getrandom": 318}
    | {"fcntl": 72, "ioctl": 16, "tgkill": 234, "prctl": 157, "seccomp": 317, "unlinkat": 263},
    "aarch64": {"read": 63, "mmap": 222, "mprotect": 226, "madvise": 233, "sendto": 206}
    | {"recvmsg": 212, "socket": 198, "clone": 220, "execve": 221, "kill": 129, "openat": 56}
    | {"prlimit64": 261, "memfd_create": 279, "clone3": 435, "futex": 98, "exit_group": 94}
    | {"getrandom": 278, "fcntl": 25, "ioctl": 29, "tgkill": 131, "prctl": 167, "seccomp": 277}
    | {"unlinkat": 35},
}
CASES = [
    *((name, (), "allow") for name in ("read", "mmap", "mprotect", "madvise", "sendto")),
    *((name, (), "allow") for name in ("recvmsg", "futex", "exit_group", "getrandom", "seccomp")),
    *((name, (), "EPERM") for name in ("socket", "execve", "memfd_create", "unlinkat")),
    ("clone3", (), "ENOSYS"),
    ("clone", (0x003D0F00,), "allow"),  # what glibc's pthread_create passes
    ("clone", (17,), "EPERM"),  # SIGCHLD: a fork
    ("clone", (0x4111,), "EPERM"),  # CLONE_VM | CLONE_VFORK | SIGCHLD: posix_spawn
    ("kill", (PID, 9), "allow"),
    ("kill", (1, 9), "EPERM"),
    ("kill", (2**32 - 1, 9), "EPERM"),
    ("kill", (0, 9), "EPERM"),
    ("tgkill", (PID, PID, 6), "allow"),
    ("tgkill", (1, 1, 6), "EPERM"),
    ("openat", (0, 0, os.O_RDONLY), "allow"),
    ("openat", (0, 0, 0o2000000 | 0o200000), "allow"),  # O_CLOEXEC | O_DIRECTORY
    ("openat", (0, 0, os.O_WRONLY), "EROFS"),
    ("openat", (0, 0, os.O_RDWR), "EROFS"),
    ("openat", (0, 0, os.O_RDONLY | os.O_CREAT), "EROFS"),
    ("openat", (0, 0, os.O_RDONLY | os.O_TRUNC), "EROFS"),
    ("prlimit64", (0, 7, 0, 0), "allow"),
    ("prlimit64", (1, 7, 1, 0), "EPERM"),
    ("prctl", (15,), "allow"),  # PR_SET_NAME
    ("prctl", (1, 0), "EPERM"),  # PR_SET_PDEATHSIG
    ("prctl", (4, 1), "EPERM"),  # PR_SET_DUMPABLE
    ("fcntl", (3, 1), "allow"),  # F_GETFD
    ("fcntl", (3, 8, 1), "EPERM"),  # F_SETOWN
    ("ioctl", (3, 0x5401), "allow"),  # TCGETS: isatty()
    ("ioctl", (3, 0x5412), "EPERM"),  # TIOCSTI
]


@pytest.mark.parametrize("machine", list(ARCH))
@pytest.mark.parametrize(("name", "arguments", "expected"), CASES)
def test_filter(machine: str, name: str, arguments: tuple[int, ...], expected: str) -> None:
    assert run_filter(machine, NUMBERS[machine][name], arguments) == expected


@pytest.mark.parametrize("machine", list(ARCH))
def test_filter_fits_and_ends(machine: str) -> None:
    code = program(PID, machine)
    assert len(code) < 4096
    for position, (operation, if_true, if_false, _constant) in enumerate(code):
        if operation in (0x15, 0x25, 0x45):
            assert max(if_true, if_false) < 256
            assert position + 1 + max(if_true, if_false) < len(code)
    assert code[-1][0] == 0x06


def test_filter_knows_only_one_calling_convention() -> None:
    assert run_filter("x86_64", 0, arch=0x40000003) == "kill"  # i386
    assert run_filter("x86_64", 0x40000000 | 41) == "kill"  # x32's socket
    assert run_filter("aarch64", 63, arch=0x40000028) == "kill"  # 32-bit ARM


@pytest.mark.parametrize("machine", list(ARCH))
def test_filter_hides_later_system_calls(machine: str) -> None:
    for number in (LAST_KNOWN + 1, 500, 2**30 - 1):
        assert run_filter(machine, number) == "ENOSYS"
    assert run_filter(machine, LAST_KNOWN) == "allow"


HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), 0),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), 1),
}


@pytest.mark.parametrize("machine", list(ARCH))
def test_numbers_are_the_kernels(machine: str) -> None:
    header, column = HEADERS[machine]
    if not header.exists():
        pytest.skip("no kernel headers here")
    defined = {
        name: int(number)
        for name, number in re.findall(
            r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", header.read_text(), re.MULTILINE
        )
    }
    compared = 0
    for name, numbers in (DENIED | BY_ARGUMENT).items():
        if name in defined:
            assert numbers[column] == defined[name], name
            compared += 1
        elif max(defined.values()) >= LAST_KNOWN:
            assert numbers[column] == -1, name
    assert compared > 120


# -- wire ---------------------------------------------------------------------------------------


def test_frames_come_back() -> None:
    left, right = socket.socketpair()
    with left, right:
        payload = wire.encode({"text": "é" * 2_000_000})
        sender = threading.Thread(
            target=wire.send_frame, args=(left, wire.Kind.REPLY, 7, payload, [0, 1])
        )
        sender.start()
        frame = wire.recv_frame(right, cap=2**24, max_fds=4)
        sender.join()
        assert (frame.kind, frame.seq, len(frame.fds)) == (wire.Kind.REPLY, 7, 2)
        assert wire.decode(frame.payload) == {"text": "é" * 2_000_000}
        wire.close_fds(frame.fds)
        left.close()
        with pytest.raises(EOFError):
            wire.recv_frame(right, cap=10)


def test_a_trickle_does_not_stretch_the_deadline() -> None:
    left, right = socket.socketpair()
    with left, right:
        stop = threading.Event()

        def trickle() -> None:
            left.sendall(wire.HEADER.pack(wire.MAGIC, 3, 1, 10_000))
            while not stop.wait(0.05):
                left.sendall(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            wire.recv_frame(right, cap=2**20, deadline=begin + 0.3)
        stop.set()
        sender.join()
        assert time.monotonic() - begin < 2


def test_random_bytes_are_never_a_frame() -> None:
    rng = random.Random(0)
    for _ in range(300):
        left, right = socket.socketpair()
        with left, right:
            left.sendall(rng.randbytes(rng.randrange(1, 200)))
            left.close()
            with pytest.raises((wire.WireError, EOFError)):
                wire.recv_frame(right, cap=100)


# -- memory and output --------------------------------------------------------------------------


@pytest.mark.parametrize("memfd", [True, False])
def test_anonymous_files(memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    source = memory.memfd_from_bytes(memoryview(bytes(range(250)) * 1000))
    output = memory.new_output_memfd(size=100)
    try:
        assert memory.map_input(source)[:] == bytes(range(250)) * 1000
        assert memory.read_output(output, 100) == bytes(100)
        with pytest.raises(ValueError, match="100 bytes; at most 99"):
            memory.read_output(output, 99)
    finally:
        os.close(source)
        os.close(output)


def test_typed_arrays_are_taken_as_bytes() -> None:
    import numpy as np

    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    fd = memory.memfd_from_bytes(array.data)
    try:
        back = np.frombuffer(memory.map_input(fd), dtype=np.float32).reshape(3, 4)
        assert (back == array).all()
    finally:
        os.close(fd)


def test_the_ring_keeps_the_end() -> None:
    """Against the plain definition: the last ``capacity`` bytes of everything written."""
    import mmap

    rng, capacity = random.Random(1), 64
    for _ in range(50):
        fd = memory.new_output_memfd(size=ring_size(capacity))
        raw = _RingBytes(mmap.mmap(fd, ring_size(capacity)), capacity)
        text, everything = _RingText(raw, capacity), ""
        for _ in range(rng.randrange(12)):
            piece = "".join(rng.choices("abcdefgh\n", k=rng.choice([0, 1, 5, 63, 64, 65, 300])))
            assert text.write(piece) == len(piece)
            everything += piece
        assert read_tail(fd, capacity) == everything[-capacity:]
        os.close(fd)


def test_a_forged_ring_is_harmless() -> None:
    fd = memory.new_output_memfd(size=ring_size(64))
    os.pwrite(fd, b"\xff" * ring_size(64), 0)
    assert len(read_tail(fd, 64)) == 64
    os.pwrite(fd, struct.pack("<Q", 20) + b"\x1b]0;title\x07ok\xff\x00 \n\t end", 0)
    assert not set(read_tail(fd, 64)) & {"\x1b", "\x07", "\x00"}
    os.close(fd)


# -- view ---------------------------------------------------------------------------------------


def test_view_follows_links_and_merges(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    (real / "inner").mkdir(parents=True)
    link.symlink_to("real")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    shown = view.View()
    shown.add(link / "inner")
    assert shown.readable == [str(real / "inner")]
    assert shown.links == {str(link): "real"}
    shown.add(real)
    shown.add(tmp_path / "missing")
    shown.add(loop)
    assert shown.readable == [str(real)]
    assert shown.covers(str(real / "x"))
    assert not shown.covers(str(tmp_path / "really"))


def test_view_shows_packages_but_not_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "module.py").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "secrets.toml").touch()
    shown = view.View()
    shown.add_import_folder(tmp_path)
    assert shown.readable == [str(tmp_path / "module.py"), str(tmp_path / "package")]
    assert shown.listable == [str(tmp_path)]


def test_the_whole_view_leaves_out_home_and_working_folder() -> None:
    shown = view.build()
    for path in (Path.home(), Path.cwd(), Path("/etc/passwd"), Path("/")):
        assert not shown.covers(str(path.resolve()))
    assert shown.covers(os.path.realpath(sys.executable))
    assert shown.covers(os.path.realpath(view.__file__))


# -- tiers --------------------------------------------------------------------------------------


@pytest.fixture
def fresh_probes() -> object:
    """Forget what is known of this machine, before and after."""
    caches = (tiers.report, bubblewrap.executable, bubblewrap.working_base)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_without_bubblewrap_the_next_tier_is_used(
    fresh_probes: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tiers.report(Tier.BUBBLEWRAP)
    assert not report.works
    assert "not installed" in report.detail
    assert "apt install bubblewrap" in report.fix
    assert tiers.detect() is not Tier.BUBBLEWRAP
    with pytest.raises(IsolationError, match="not installed"):
        ForkServer("galoop.isolation.selfcheck:warm", {}, tier=Tier.BUBBLEWRAP)


def test_a_bubblewrap_that_fails_is_reported(
    fresh_probes: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "No permissions to create" in tiers.report(Tier.BUBBLEWRAP).detail
    assert Tier.BUBBLEWRAP not in tiers.available_tiers()


def test_a_bubblewrap_that_hides_nothing_is_not_believed(
    fresh_probes: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ] && [ $# -gt 1 ]; do shift; done\n'
        '[ "$1" = -- ] && shift\nexec "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    report = tiers.report(Tier.BUBBLEWRAP)
    assert not report.works
    assert "could read" in report.detail


def test_the_package_is_light() -> None:
    code = (
        "import sys, galoop.isolation; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.parametrize("bad", [{"seconds": 0}, {"memory_mb": -1}, {"processes": 2}])
def test_limits_are_checked(bad: dict) -> None:
    with pytest.raises(ValueError, match=r"limits must|cannot start"):
        Limits(**bad)
