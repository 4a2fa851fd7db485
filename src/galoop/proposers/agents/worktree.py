"""An agent's git worktree: how it is laid out, and how it is read back without being believed.

The repository is made for the agent's convenience. It is never asked for anything afterwards: a
repository that an agent could write to can run programs through its configuration. Candidates are
read file by file, without following links, and compared with the sources that were put there.
"""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from galoop.errors import InfrastructureError
from galoop.types import Candidate, Kind

#: The task file at the top of a worktree.
TASK = "TASK.md"
MAX_FILE_BYTES = 256 * 1024
MAX_TREE_BYTES = 1024 * 1024
MAX_FILES = 64
#: Entries of a tree that are looked at before it is refused.
_MAX_ENTRIES = 2000
_MAX_DEPTH = 8
#: Larger files that an agent left are removed unsearched where there are credentials.
_MAX_SEARCHED = 64 * 1024 * 1024
_MAX_DIFF = 200_000
#: What interpreters and tools write by themselves; no part of a candidate.
_OVERLOOKED = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"})
_GIT_SECONDS = 30.0


class RefusedTree(Exception):
    """The worktree holds no candidate; the message says why, to the agent and to people."""


@dataclass(frozen=True)
class Worktree:
    """A folder for one agent session.

    Attributes
    ----------
    path : Path
    kind : {"probe", "artifact"}
    task : str
        The text of the task file.
    start : mapping of str to str
        The sources that were put there.
    leavings : frozenset of str
        Top-level names that the agent's own program writes.
    """

    path: Path
    kind: Kind
    task: str
    start: Mapping[str, str]
    leavings: frozenset[str] = frozenset()

    @property
    def sources(self) -> str:
        """The folder of the candidate, at the top of the worktree: ``artifact`` or ``probe``."""
        return self.kind

    def create(self) -> None:
        """Write task file and sources, and commit them.

        Raises
        ------
        InfrastructureError
            If a source has a path that leads out of the folder.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        root = self.path / self.sources
        root.mkdir(parents=True)
        (self.path / TASK).write_text(self.task, encoding="utf-8")
        for name, text in self.start.items():
            target = root / name
            if root.resolve() not in target.resolve().parents:
                raise InfrastructureError(f"candidate file {name!r} leads out of its folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        _commit(self.path)

    def read(self, note: str, secrets: Sequence[str] = ()) -> Candidate:
        """The candidate that lies in the tree now.

        Parameters
        ----------
        note : str
            For people.
        secrets : sequence of str
            Values of credentials, which must not enter a run folder.

        Raises
        ------
        RefusedTree
            If something but the sources was changed, or they hold what a candidate may not.
        """
        self._check_surroundings()
        files: dict[str, str] = {}
        total = 0
        for name, data in _files(self.path / self.sources):
            total += len(data)
            if len(files) >= MAX_FILES:
                raise RefusedTree(f"{self.sources}/ holds more than {MAX_FILES} files")
            if total > MAX_TREE_BYTES:
                raise RefusedTree(f"{self.sources}/ holds more than {MAX_TREE_BYTES} bytes")
            files[name] = _text(f"{self.sources}/{name}", data)
            if any(secret in name for secret in secrets):
                raise RefusedTree(f"{self.sources}/ has a file named after a credential")
            if any(secret in files[name] for secret in secrets):
                raise RefusedTree(f"{self.sources}/{name} holds the value of a credential")
        if not files:
            raise RefusedTree(f"{self.sources}/ is empty")
        if self.kind == "probe" and set(files) != {"probe.py"}:
            raise RefusedTree(f"a probe is the one file probe.py, not {', '.join(sorted(files))}")
        return Candidate(self.kind, dict(sorted(files.items())), note)

    def _check_surroundings(self) -> None:
        """Only the sources may differ from what was put there."""
        expected = {TASK, self.sources, ".git", *self.leavings, *_OVERLOOKED}
        try:
            entries = {entry.name: entry for entry in os.scandir(self.path)}
        except OSError as error:
            raise RefusedTree(f"the worktree cannot be read: {error.strerror}") from None
        strange = sorted(repr(name) for name in entries.keys() - expected)
        if strange:
            raise RefusedTree(
                f"outside {self.sources}/: {', '.join(strange[:5])}; only files in "
                f"{self.sources}/ may be written (scratch files belong in $TMPDIR)"
            )
        root = entries.get(self.sources)
        if root is None or not root.is_dir(follow_symlinks=False):
            raise RefusedTree(f"{self.sources}/ is missing or no folder")
        try:
            task = _read(self.path / TASK, None)
        except (OSError, RefusedTree):
            task = b""
        if task != self.task.encode("utf-8"):
            raise RefusedTree(f"{TASK} was changed; only files in {self.sources}/ may be written")


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """A unified diff between two sets of files, bounded in length."""
    parts: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        parts += difflib.unified_diff(
            (before or "").splitlines(keepends=True),
            (after or "").splitlines(keepends=True),
            f"a/{name}" if before is not None else "/dev/null",
            f"b/{name}" if after is not None else "/dev/null",
        )
    text = "".join(line if line.endswith("\n") else line + "\n" for line in parts)
    return text if len(text) <= _MAX_DIFF else text[:_MAX_DIFF] + "\n[shortened]\n"


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder, relative path and content; nothing is followed."""
    seen = 0
    folders = [(root, "", 0)]
    while folders:
        folder, prefix, depth = folders.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise RefusedTree(f"{prefix or '.'} cannot be read: {error.strerror}") from None
        for entry in entries:
            seen += 1
            name = prefix + entry.name
            if seen > _MAX_ENTRIES or depth >= _MAX_DEPTH:
                raise RefusedTree(f"{root.name}/ holds too many files or folders")
            if entry.name in _OVERLOOKED:
                continue
            if entry.is_symlink():
                raise RefusedTree(f"{root.name}/{_shown(name)} is a symbolic link")
            if entry.is_dir(follow_symlinks=False):
                folders.append((Path(entry.path), name + "/", depth + 1))
                continue
            if not name.isprintable() or "\\" in name:
                raise RefusedTree(f"{root.name}/{_shown(name)} has unusual characters in its name")
            yield name, _read(Path(entry.path), root)


def _read(path: Path, root: Path | None) -> bytes:
    """The bytes of a regular file; links, pipes, devices and large files are refused."""
    shown = f"{root.name}/{_shown(path.relative_to(root).as_posix())}" if root else path.name
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RefusedTree(f"{shown} cannot be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedTree(f"{shown} is no regular file")
        if status.st_nlink > 1:
            raise RefusedTree(f"{shown} is a hard link")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise RefusedTree(f"{shown} is larger than {MAX_FILE_BYTES} bytes")
    return data


def scrub(tree: Path, secrets: Sequence[str]) -> None:
    """Take values of credentials out of what an agent left: they must not stay in a run folder.

    Files that hold one, or are named after one, are removed, and so is the repository, whose
    compressed objects cannot be searched; what was handed in is recorded elsewhere.
    """
    if not secrets:
        return
    values = [secret.encode("utf-8") for secret in secrets]
    shutil.rmtree(tree / ".git", ignore_errors=True)
    for folder, names, files in os.walk(tree, topdown=False):
        for name in (*files, *names):
            path = Path(folder, name)
            named = any(secret in name for secret in secrets)
            if path.is_symlink():
                if named or any(secret in str(path.readlink()) for secret in secrets):
                    path.unlink(missing_ok=True)
            elif path.is_dir():
                if named:
                    shutil.rmtree(path, ignore_errors=True)
            elif named or _holds(path, values):
                path.unlink(missing_ok=True)


def _holds(path: Path, values: Sequence[bytes]) -> bool:
    """Whether a file holds one of the values; one that cannot be searched counts as if it did."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_SEARCHED:
            return True
        data = path.read_bytes()
    except OSError:
        return True
    return any(value in data for value in values)


def _text(shown: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise RefusedTree(f"{shown} is binary (not UTF-8)") from None
    if "\0" in text:
        raise RefusedTree(f"{shown} is binary (holds a zero byte)")
    return text


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:100]


def _commit(path: Path) -> None:
    """Make the folder a repository with one commit, where there is git."""
    git = shutil.which("git")
    if git is None:
        return
    settings = ["-c", "user.name=galoop", "-c", "user.email=galoop@localhost"]
    settings += ["-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"]
    environment = {
        "PATH": os.defpath,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
        "LANG": "C.UTF-8",
    }
    for step in (["init", "-q", "-b", "main", "."], ["add", "-A"], ["commit", "-q", "-m", "start"]):
        try:
            done = subprocess.run(
                [git, *settings, *step],
                cwd=path,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_GIT_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"git {step[0]} failed in {path}: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise InfrastructureError(f"git {step[0]} failed in {path}: {said}")
