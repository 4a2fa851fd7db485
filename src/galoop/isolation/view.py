"""Which files a sandbox may see: the interpreter, its packages, galoop, and what the caller adds.

An allow-list: the working folder, the home folder and run folders (where gold answers lie) are not
on it, even when Python's own path would reach them.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SYSTEM = (
    "/usr",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/nix/store",
)
#: Hardware descriptions that OpenMP and PyTorch read.
HARDWARE = ("/sys/devices/system/cpu", "/sys/devices/system/node")
PROC_FILES = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_MAX_LINKS = 40


@dataclass
class View:
    """What to show: real paths to read, folders to list, and the links that lead there.

    Attributes
    ----------
    readable : list of str
        Real paths without links in them; a folder stands for everything below it.
    listable : list of str
        Import folders of which only the chosen packages are readable.
    links : dict of str to str
        Link -> target, to recreate where the file system is built anew.
    python_path : list of str
        For PYTHONPATH, in order.
    """

    readable: list[str] = field(default_factory=list)
    listable: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    python_path: list[str] = field(default_factory=list)

    def covers(self, path: str) -> bool:
        """Whether a real path is readable already."""
        return any(
            path == root or path.startswith(root.rstrip("/") + "/") for root in self.readable
        )

    def add(self, path: str | os.PathLike[str], _depth: int = 0) -> None:
        """Show a path, with every link on the way to it. What does not exist is left out."""
        current = "/"
        parts = Path(os.path.abspath(path)).parts[1:]  # noqa: PTH100 - must not resolve links
        for index, part in enumerate(parts):
            step = os.path.join(current, part)  # noqa: PTH118
            if os.path.islink(step):  # noqa: PTH114
                if _depth >= _MAX_LINKS:
                    return
                target = os.readlink(step)  # noqa: PTH115
                if not self.covers(step):
                    self.links[step] = target
                self.add(Path(current, target, *parts[index + 1 :]), _depth + 1)
                return
            current = step
        if os.path.exists(current) and not self.covers(current) and current != "/":  # noqa: PTH110
            self.readable = [
                root for root in self.readable if not root.startswith(current + "/")
            ] + [current]

    def add_data(self, path: Path) -> None:
        """Show a data folder together with what the links in it point to (hub caches do that)."""
        self.add(path)
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                entry = Path(folder, name)
                if entry.is_symlink():
                    self.add(entry)

    def add_import_folder(self, folder: Path) -> None:
        """Show the packages and modules of an import folder, but not what else lies in it."""
        real = os.path.realpath(folder)
        if self.covers(real) or not os.path.isdir(real):  # noqa: PTH112
            return
        for entry in sorted(Path(real).iterdir()):
            is_package = entry.name.isidentifier() and (entry / "__init__.py").exists()
            if is_package or (entry.suffix in (".py", ".so") and entry.is_file()):
                self.add(entry)
        self.listable.append(real)


def _path_entries_of_pth_files(folders: Iterable[str]) -> list[Path]:
    """Existing folders that ``*.pth`` files put on the import path (editable installs)."""
    found = []
    for folder in folders:
        for pth in sorted(Path(folder).glob("*.pth")):
            for line in pth.read_text(encoding="utf-8", errors="replace").splitlines():
                text = line.strip()
                if text and not text.startswith(("#", "import ", "import\t")):
                    entry = Path(folder, text)
                    if entry.is_dir():
                        found.append(entry)
    return found


def build(readable: Sequence[Path] = (), python_path: Sequence[Path] = ()) -> View:
    """The view of one sandbox.

    Parameters
    ----------
    readable : sequence of Path
        Data to read: model folders, tokenizers.
    python_path : sequence of Path
        Further import folders, before all others; readable as a whole.
    """
    import galoop

    view = View()
    for path in _SYSTEM:
        view.add(path)
    for path in (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix):
        view.add(path)
    view.add(sys.executable)
    packages = [folder for folder in site.getsitepackages() if os.path.isdir(folder)]  # noqa: PTH112
    user = site.getusersitepackages()
    if site.ENABLE_USER_SITE and user in sys.path:
        packages.append(user)
        view.python_path.append(user)
    for folder in packages:
        view.add(folder)
    package = Path(galoop.__file__).parent
    view.add(package)
    for entry in _path_entries_of_pth_files(packages):
        if entry.resolve() != package.parent.resolve():
            view.add_import_folder(entry)
    for entry in python_path:
        view.add(entry)
    for data in readable:
        view.add_data(Path(data))
    view.listable.append(os.path.realpath(package.parent))
    view.listable = [f for f in dict.fromkeys(view.listable) if not view.covers(f)]
    view.python_path = [
        *(str(Path(entry).absolute()) for entry in python_path),
        str(package.parent),
        *view.python_path,
    ]
    return view
