# The system calls themselves are what is tried here.
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH115, PTH208, PTH211
"""Misbehaving candidates for the isolation tests; runs inside the sandbox.

``serve`` looks up what to do by name, so that one module holds every kind of misbehaviour.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from galoop.isolation import wire
from galoop.isolation.channel import Channel
from galoop.isolation.memory import map_input


def warm(init: Mapping[str, Any]) -> dict[str, Any]:
    if init.get("torch"):
        import torch

        torch.set_num_threads(1)
    if init.get("hang"):
        time.sleep(1000)
    if init.get("fail"):
        raise ValueError("the warm parent broke on purpose")
    return {"loaded": init.get("payload", "nothing")}


def warm_leaving_a_thread(init: Mapping[str, Any]) -> None:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="left-behind").start()


def serve(state: dict[str, Any], init: Mapping[str, Any], channel: Channel) -> None:
    candidate = Candidate(state, init, channel)
    for request, fds in channel:
        candidate.fds = fds
        reply = getattr(candidate, request["do"])(**request.get("with", {}))
        if reply is not None:
            channel.reply(reply)


def attempt(action: Any) -> dict[str, Any]:
    """What an action returned, or the name of its errno."""
    try:
        return {"result": repr(action())}
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno or 0, str(error))}
    except ValueError as error:  # how the resource module words EPERM
        return {"errno": "EPERM" if "not allowed" in str(error) else str(error)}


class Candidate:
    def __init__(self, state: dict[str, Any], init: Mapping[str, Any], channel: Channel) -> None:
        self.state, self.init, self.channel = state, init, channel
        self.fds: list[int] = []

    def echo(self, **values: Any) -> dict[str, Any]:
        return {"pid": os.getpid(), "state": self.state, "init": self.init, "values": values}

    def sleep(self, seconds: float) -> dict[str, Any]:
        time.sleep(seconds)
        return {}

    def spin(self) -> None:
        while True:
            pass

    def close_channel_and_sleep(self) -> None:
        self.channel._sock.close()
        time.sleep(1000)

    def hog(self, mebibytes: int) -> dict[str, Any]:
        return {"length": len(bytearray(mebibytes * 2**20))}

    def exit(self, code: int) -> None:
        os._exit(code)

    def system_exit(self) -> None:
        sys.exit("leaving")

    def crash_natively(self) -> None:
        ctypes.string_at(0)

    def abort(self) -> None:
        os.abort()

    def kill_itself(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def raise_after_printing(self) -> None:
        print("first line", flush=True)
        print("on the error stream", file=sys.stderr)
        sys.stdout.buffer.write(b"\x1b[31mbytes\n")
        raise ValueError("on purpose")

    def print_gigabyte(self) -> dict[str, Any]:
        chunk = "x" * 2**20
        for _ in range(512):
            print(chunk)
        for _ in range(512):
            os.write(1, chunk.encode())
        print("the end")
        return {"printed": True}

    def print_then_hang(self) -> None:
        print("about to hang")
        time.sleep(1000)

    def send(self, text: str, times: int = 1) -> None:
        self.channel._sock.sendall(text.encode() * times)
        time.sleep(1000)

    def send_frame(self, text: str, kind: int = 3, seq: int | None = None) -> None:
        wire.send_frame(
            self.channel._sock,
            wire.Kind(kind),
            self.channel._seq if seq is None else seq,
            text.encode(),
        )

    def announce(self, length: int) -> None:
        header = wire.HEADER.pack(wire.MAGIC, wire.Kind.REPLY, self.channel._seq, length)
        self.channel._sock.sendall(header)
        time.sleep(1000)

    def reply_too_long(self) -> dict[str, Any]:
        return {"text": "x" * 17 * 2**20}

    def reply_nan(self) -> dict[str, Any]:
        return {"value": float("nan")}

    def send_descriptor(self) -> None:
        payload = b'{"fine": true}'
        header = wire.HEADER.pack(wire.MAGIC, wire.Kind.REPLY, self.channel._seq, len(payload))
        socket.send_fds(self.channel._sock, [header + payload], [0])

    def write_output(self, mebibytes: int) -> dict[str, Any]:
        chunk, written = b"x" * 2**20, 0
        try:
            for _ in range(mebibytes):
                written += os.write(self.fds[0], chunk)
        except OSError as error:
            return {"written": written, "errno": errno.errorcode[error.errno]}
        return {"written": written}

    def grow_output(self, size: int) -> dict[str, Any]:
        return attempt(lambda: os.ftruncate(self.fds[0], size))

    def read_input(self) -> dict[str, Any]:
        mapped = map_input(self.fds[0])
        text = mapped[:].decode()
        mapped[0:1] = b"X"  # its own copy
        return {"text": text, "write": attempt(lambda: os.pwrite(self.fds[0], b"X", 0))}

    def read_file(self, path: str) -> dict[str, Any]:
        return attempt(Path(path).read_text)

    def write_files(self, folders: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for folder in folders:
            name = f"{folder}/galoop-test-{os.getpid()}"
            found[f"create {folder}"] = attempt(lambda n=name: open(n, "w").close())
            found[f"mkdir {folder}"] = attempt(lambda n=name: os.mkdir(n))
            found[f"symlink {folder}"] = attempt(lambda n=name: os.symlink("/", n))
        return found

    def change_file(self, path: str) -> dict[str, Any]:
        return {
            "append": attempt(lambda: open(path, "a").close()),
            "truncate": attempt(lambda: os.truncate(path, 0)),
            "chmod": attempt(lambda: os.chmod(path, 0o777)),
            "unlink": attempt(lambda: os.unlink(path)),
            "rename": attempt(lambda: os.rename(path, path + "x")),
            "utime": attempt(lambda: os.utime(path, (0, 0))),
        }

    def sockets(self) -> dict[str, Any]:
        return {
            "inet": attempt(lambda: socket.socket(socket.AF_INET)),
            "inet6 udp": attempt(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)),
            "unix": attempt(lambda: socket.socket(socket.AF_UNIX)),
            "netlink": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        }

    def processes(self) -> dict[str, Any]:
        import subprocess

        return {
            "fork": attempt(os.fork),
            "vfork": attempt(lambda: subprocess.run(["/bin/true"])),
            "spawn": attempt(lambda: os.posix_spawn("/bin/true", ["true"], {})),
            "exec": attempt(lambda: os.execv("/bin/true", ["true"])),
            "setsid": attempt(os.setsid),
        }

    def attack_others(self) -> dict[str, Any]:
        parent = os.getppid()
        pipe, _ = os.pipe()
        libc = ctypes.CDLL(None, use_errno=True)

        def call(name: str, *arguments: int) -> int:
            if getattr(libc, name)(*arguments) < 0:
                raise OSError(ctypes.get_errno(), name)
            return 0

        import resource

        return {
            "kill parent": attempt(lambda: os.kill(parent, signal.SIGKILL)),
            "kill all": attempt(lambda: os.kill(-1, signal.SIGKILL)),
            "kill group": attempt(lambda: os.killpg(0, signal.SIGKILL)),
            "owner": attempt(lambda: fcntl.fcntl(pipe, fcntl.F_SETOWN, parent)),
            "signal": attempt(lambda: fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)),
            "ptrace": attempt(lambda: call("ptrace", 16, parent, 0, 0)),
            "read memory": attempt(lambda: call("process_vm_readv", parent, 0, 0, 0, 0, 0)),
            "limits": attempt(lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1))),
            "raise": attempt(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (2**19, 2**19))),
            "outlive": attempt(lambda: call("prctl", 1, 0, 0, 0, 0)),
            "dumpable": attempt(lambda: call("prctl", 4, 1, 0, 0, 0)),
            "namespace": attempt(lambda: call("unshare", 0x10000000)),
            "memfd": attempt(lambda: os.memfd_create("more")),
            "mount": attempt(lambda: call("mount", 0, 0, 0, 0, 0)),
        }

    def secrets(self) -> dict[str, Any]:
        found = {"os": repr(dict(os.environ))}
        for process in ["self", str(os.getppid()), *map(str, range(1, 40)), *self.fds_of_proc()]:
            found[process] = str(attempt(Path(f"/proc/{process}/environ").read_bytes))
        return found

    def fds_of_proc(self) -> list[str]:
        try:
            return [name for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return []

    def inspect_parent(self) -> dict[str, Any]:
        parent = os.getppid()
        return {
            **{
                f"descriptor {fd}": attempt(lambda fd=fd: os.readlink(f"/proc/{parent}/fd/{fd}"))
                for fd in range(4)
            },
            "maps": attempt(lambda: open(f"/proc/{parent}/maps").read()),
            "memory": attempt(lambda: open(f"/proc/{parent}/mem", "rb").close()),
        }

    def own_descriptors(self) -> dict[str, Any]:
        """Every open descriptor, by trying: /proc is not there in every tier."""
        found = []
        for fd in range(4096):
            try:
                os.fstat(fd)
            except OSError:
                continue
            found.append(fd)
        return {"fds": found, "channel": self.channel._sock.fileno()}

    def threads(self) -> dict[str, Any]:
        totals: list[int] = []
        workers = [threading.Thread(target=lambda: totals.append(1)) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return {"count": len(totals)}

    def torch_sum(self) -> dict[str, Any]:
        import torch

        generator = torch.Generator().manual_seed(0)
        matrix = torch.randn(200, 200, generator=generator)
        product = torch.nn.functional.scaled_dot_product_attention(
            matrix[None, None], matrix[None, None], matrix[None, None]
        )
        return {"sum": float(product.double().sum()), "threads": torch.get_num_threads()}

    def hash_of(self, text: str) -> dict[str, Any]:
        return {"hash": hash(text)}
