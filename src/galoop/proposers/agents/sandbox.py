"""Where an agent runs: what it may read, what it may write, and which variables it has.

In bubblewrap an agent has the network (its API), a read-only view of system, interpreter and its
own program, and three folders: its worktree and a home of its own to write, the evaluation command
to run. The rest of the run folder, the user's home and every other process do not exist for it.
Without bubblewrap it is a plain process that could read what its user can; that is said, and
refused where ``isolation.require`` is set.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from galoop.errors import IsolationError, UsageError
from galoop.isolation import bubblewrap
from galoop.isolation.contract import Tier
from galoop.isolation.view import HARDWARE, View, build
from galoop.proposers.agents.adapter import Adapter

#: Where a sandboxed agent finds its folders.
INSIDE = Path("/agent")
_USER = 1000  # not root: some agents refuse to work as root, and it is no privilege anyway
_TMP_BYTES = 2 * 1024**3
_NETWORK_FILES = (
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
)
#: Variables about the network that an agent needs to reach its API; none is a credential.
_NETWORK_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)


@dataclass(frozen=True)
class Place:
    """The folders of one session: where they are, and where the agent sees them.

    Attributes
    ----------
    worktree, home, tools, socket : Path
        On this side.
    sandboxed : bool
    """

    worktree: Path
    home: Path
    tools: Path
    socket: Path
    sandboxed: bool

    def seen(self, name: str) -> Path:
        """Folder ``worktree``, ``home``, ``tools`` or ``socket`` as the agent sees it."""
        return INSIDE / name if self.sandboxed else Path(getattr(self, name))


def may_sandbox(tier: str, require: bool) -> bool:
    """Whether agents run in bubblewrap here.

    Parameters
    ----------
    tier : str
        ``isolation.tier`` of the experiment.
    require : bool
        ``isolation.require``.

    Raises
    ------
    IsolationError
        If a sandbox is asked for and there is none. Landlock's rules are made for candidates that
        write nothing; they do not fit an agent.
    """
    works, reason = bubblewrap.working_base()
    if works is not None and tier in ("auto", str(Tier.BUBBLEWRAP)):
        return True
    if require or tier in (str(Tier.BUBBLEWRAP), str(Tier.LANDLOCK)):
        raise IsolationError(
            f"agents cannot be isolated here: {reason or f'isolation.tier is {tier!r}'}",
            "install bubblewrap, or set isolation.tier = 'plain' and isolation.require = false",
        )
    return False


def find_program(command: Sequence[str], adapter: Adapter) -> Path:
    """The executable of an agent.

    Parameters
    ----------
    command : sequence of str
        ``agent.command``; its first word wins over the adapter's own program.
    adapter : Adapter

    Raises
    ------
    UsageError
        If there is none.
    """
    name = command[0] if command else adapter.program
    if not name:
        raise UsageError("agent.command is empty", "name the program that edits the worktree")
    found = shutil.which(name)
    if found is None and not command and adapter.bundled is not None:
        package, place = adapter.bundled
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found = found or shutil.which(str(Path(folder, place)))
    if found is None:
        raise UsageError(
            f"agent program {name!r} was not found", "install it, or set agent.command to its path"
        )
    return Path(found).absolute()


def environment(
    place: Place, program: Path, keys: Sequence[str], more: Mapping[str, str]
) -> dict[str, str]:
    """Everything that the agent inherits.

    Parameters
    ----------
    place : Place
    program : Path
    keys : sequence of str
        Names of variables to pass on where they are set: its credentials.
    more : mapping
        What the adapter adds.
    """
    folders = [str(place.seen("tools")), str(program.parent), str(Path(sys.executable).parent)]
    node = shutil.which("node")
    if node:
        folders.append(str(Path(node).parent))
    folders += ["/usr/local/bin", "/usr/bin", "/bin"]
    found = {
        "PATH": os.pathsep.join(dict.fromkeys(folders)),
        "HOME": str(place.seen("home")),
        "TMPDIR": "/tmp" if place.sandboxed else str(place.home / "tmp"),
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        **more,
    }
    network = [n for v in _NETWORK_VARIABLES for n in (v, v.upper())]
    for name in (*network, *_CERTIFICATE_VARIABLES, *keys):
        if name in os.environ:
            found[name] = os.environ[name]
    return found


def _program_folder(program: Path) -> list[Path]:
    """What must be readable for a program to start: its file, and the package that it is part of.

    A script of a Node package needs the folder of all packages; a program below a ``bin`` folder,
    what is installed beside it.
    """
    real = program.resolve()
    found = [program, real]
    parts = real.parts
    if "node_modules" in parts:
        found.append(Path(*parts[: parts.index("node_modules") + 1]))
    elif real.parent != Path.home().resolve() and real.parent.name not in ("", "bin"):
        found.append(real.parent)
    return found


def command(
    place: Place,
    argv: Sequence[str],
    program: Path,
    readable: Sequence[Path] = (),
    network: bool = True,
    hidden: Path | None = None,
) -> list[str]:
    """The command line that runs an agent in bubblewrap.

    Parameters
    ----------
    place : Place
    argv : sequence of str
    program : Path
    readable : sequence of Path
        Further files and folders to show.
    network : bool
        Whether there is one.
    hidden : Path, optional
        The run folder, which must not be among what is shown.

    Raises
    ------
    IsolationError
        If it is.
    """
    base, reason = bubblewrap.working_base()
    if base is None:
        raise IsolationError(reason)
    view = _view(program, readable)
    if hidden is not None and view.covers(os.path.realpath(hidden)):
        raise IsolationError(
            f"the run folder {hidden} lies in a folder that agents may read",
            "choose another run folder, or shorten agent.readable",
        )
    line = [*base, "--die-with-parent", "--uid", str(_USER), "--gid", str(_USER)]
    line += ["--share-net"] if network else []
    line += ["--dev", "/dev", "--proc", "/proc"]
    line += ["--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]
    for path in sorted(view.readable, key=lambda p: (p.count("/"), p)):
        line += ["--ro-bind", path, path]
    for link, target in sorted(view.links.items()):
        if not view.covers(link):  # a folder that was added later holds it
            line += ["--symlink", target, link]
    for folder in view.listable:
        line += ["--dir", folder]
    for path in HARDWARE:
        line += ["--ro-bind-try", path, path]
    line += ["--ro-bind", str(_user_file(place)), "/etc/passwd"]
    line += ["--bind", str(place.worktree), str(INSIDE / "worktree")]
    line += ["--bind", str(place.home), str(INSIDE / "home")]
    line += ["--ro-bind", str(place.tools), str(INSIDE / "tools")]
    line += ["--ro-bind", str(place.socket), str(INSIDE / "socket")]
    line += ["--remount-ro", "/", "--chdir", str(INSIDE / "worktree")]
    return [*line, "--", *argv]


def _view(program: Path, readable: Sequence[Path]) -> View:
    view = build()
    for path in _NETWORK_FILES:
        view.add(path)
    for name in _CERTIFICATE_VARIABLES:
        if os.environ.get(name):
            view.add(os.environ[name])
    node = shutil.which("node")
    for found in (*_program_folder(program), *([Path(node)] if node else [])):
        view.add(found)
    for more in readable:
        view.add(more)
    return view


def _user_file(place: Place) -> Path:
    """A password file with the agent's user, which some programs look up."""
    path = place.tools / "passwd"
    path.write_text(f"agent:x:{_USER}:{_USER}::{INSIDE / 'home'}:/bin/sh\n", encoding="utf-8")
    return path
