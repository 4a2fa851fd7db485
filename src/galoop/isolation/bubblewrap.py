"""The command line of bubblewrap for a sandbox that sees only its allow-list."""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
from pathlib import Path

from galoop.isolation.view import DEVICES, HARDWARE, View

_PROBE_SECONDS = 10.0


@functools.cache
def executable() -> str | None:
    """The absolute path of ``bwrap``, or None."""
    return shutil.which("bwrap")


def _base(disable_userns: bool) -> list[str]:
    path = executable()
    assert path is not None
    command = [path, "--unshare-all", "--unshare-user", "--new-session", "--cap-drop", "ALL"]
    if disable_userns:
        command.append("--disable-userns")
    return command


@functools.cache
def working_base() -> tuple[list[str] | None, str]:
    """The strictest options that work on this machine, or None and the reason.

    Old versions and some containers cannot switch off further user namespaces; the rest stays.
    """
    if executable() is None:
        return None, "bwrap is not installed"
    reason = ""
    for disable_userns in (True, False):
        base = _base(disable_userns)
        command = [*base, "--ro-bind", "/", "/", "--proc", "/proc", "true"]
        try:
            done = subprocess.run(
                command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, timeout=_PROBE_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            continue
        if done.returncode == 0:
            return base, ""
        reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
    return None, f"bwrap does not work here: {reason}"


def command(view: View, inner: list[str]) -> list[str]:
    """The whole command that runs ``inner`` and sees ``view``.

    The new root is a temporary file system that is made read-only once the mounts are in place.
    ``--die-with-parent`` follows the *thread* that starts bubblewrap, so it is only given where
    that thread lives as long as the process; the lifeline of the server covers the other case.
    """
    base, reason = working_base()
    if base is None:
        raise OSError(reason)
    arguments = list(base)
    if threading.current_thread() is threading.main_thread():
        arguments.append("--die-with-parent")
    for path in sorted(view.readable, key=lambda p: (p.count("/"), p)):
        arguments += ["--ro-bind", path, path]
    for link, target in sorted(view.links.items()):
        arguments += ["--symlink", target, link]
    for folder in view.listable:
        arguments += ["--dir", folder]
    for path in HARDWARE:
        arguments += ["--ro-bind-try", path, path]
    for device in DEVICES:
        if Path(device).exists():
            arguments += ["--dev-bind", device, device]
    arguments += ["--proc", "/proc", "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/"]
    return [*arguments, "--", *inner]
