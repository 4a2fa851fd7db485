"""What an agent's worktree may hold to be a candidate."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from galoop.errors import InfrastructureError
from galoop.proposers.agents import worktree
from galoop.proposers.agents.worktree import RefusedTree, Worktree, difference
from galoop.types import Candidate, Kind

FILES = {"artifact.toml": "a = 1\n", "press.py": "x = 1\n", "sub/more.py": "y = 2\n"}


def made(tmp_path: Path, kind: Kind = "artifact", files: dict[str, str] | None = None) -> Worktree:
    tree = Worktree(tmp_path / "tree", kind, "the task\n", files if files is not None else FILES)
    tree.create()
    return tree


def test_reads_back_what_was_put_there(tmp_path: Path) -> None:
    tree = made(tmp_path)
    assert tree.read("n") == Candidate("artifact", FILES, "n")
    assert (tree.path / "TASK.md").read_text() == "the task\n"


def test_it_is_a_clean_repository_of_one_commit(tmp_path: Path) -> None:
    tree = made(tmp_path)

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=tree.path, capture_output=True, text=True)
        return done.stdout

    assert git("status", "--porcelain") == ""
    assert len(git("log", "--format=%h").split()) == 1
    assert set(git("ls-files").split()) == {"TASK.md", *(f"artifact/{name}" for name in FILES)}


def test_edits_additions_and_removals_count(tmp_path: Path) -> None:
    tree = made(tmp_path)
    (tree.path / "artifact" / "press.py").write_text("x = 2\n")
    (tree.path / "artifact" / "new.py").write_text("z = 3\n")
    (tree.path / "artifact" / "sub" / "more.py").unlink()
    found = tree.read("")
    assert found.files == {"artifact.toml": "a = 1\n", "press.py": "x = 2\n", "new.py": "z = 3\n"}
    diff = difference(tree.start, found.files)
    assert "-x = 1\n+x = 2\n" in diff
    assert "--- /dev/null\n+++ b/new.py\n" in diff
    assert "+++ /dev/null\n" in diff


def test_what_tools_leave_is_overlooked(tmp_path: Path) -> None:
    tree = Worktree(tmp_path / "t", "artifact", "task", FILES, frozenset({".claude"}))
    tree.create()
    for name in (".claude", "__pycache__", "artifact/__pycache__"):
        (tree.path / name).mkdir()
        (tree.path / name / "x.pyc").write_bytes(b"\0")
    (tree.path / ".git" / "config").write_text("[core]\nfsmonitor = /bin/false\n")
    assert tree.read("").files == FILES


def _outside(tree: Path) -> None:
    (tree / "notes.md").write_text("x")


def _task(tree: Path) -> None:
    (tree / "TASK.md").write_text("an easier task")


def _task_link(tree: Path) -> None:
    (tree / "TASK.md").unlink()
    (tree / "TASK.md").symlink_to("/etc/hostname")


def _link(tree: Path) -> None:
    (tree / "artifact" / "x.py").symlink_to("/etc/hostname")


def _folder_link(tree: Path) -> None:
    (tree / "artifact" / "x").symlink_to("/etc")


def _root_link(tree: Path) -> None:
    (tree / "artifact").rename(tree.parent / "elsewhere")
    (tree / "artifact").symlink_to(tree.parent / "elsewhere")


def _hard_link(tree: Path) -> None:
    secret = tree.parent / "secret"
    secret.write_text("gold")
    os.link(secret, tree / "artifact" / "x.py")


def _pipe(tree: Path) -> None:
    os.mkfifo(tree / "artifact" / "x.py")


def _binary(tree: Path) -> None:
    (tree / "artifact" / "x.py").write_bytes(b"\xff\xfe\xfd")


def _zero(tree: Path) -> None:
    (tree / "artifact" / "x.py").write_bytes(b"a\0b")


def _large(tree: Path) -> None:
    (tree / "artifact" / "x.py").write_bytes(b"a" * (worktree.MAX_FILE_BYTES + 1))


def _large_together(tree: Path) -> None:
    for i in range(worktree.MAX_TREE_BYTES // worktree.MAX_FILE_BYTES + 1):
        (tree / "artifact" / f"x{i}.py").write_bytes(b"a" * worktree.MAX_FILE_BYTES)


def _many(tree: Path) -> None:
    for i in range(worktree.MAX_FILES + 1):
        (tree / "artifact" / f"x{i}.py").write_text("")


def _many_folders(tree: Path) -> None:
    for i in range(2100):
        (tree / "artifact" / f"d{i}").mkdir()


def _deep(tree: Path) -> None:
    (tree / "artifact" / "/".join("abcdefghijkl")).mkdir(parents=True)
    (tree / "artifact" / "/".join("abcdefghijkl") / "x.py").write_text("")


def _name(tree: Path) -> None:
    (tree / "artifact" / "x\n.py").write_text("")


def _empty(tree: Path) -> None:
    for path in sorted((tree / "artifact").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _gone(tree: Path) -> None:
    (tree / "artifact").rename(tree.parent / "gone")


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (_outside, "outside artifact/: 'notes.md'"),
        (_task, "TASK.md was changed"),
        (_task_link, "TASK.md was changed"),
        (_link, "artifact/x.py is a symbolic link"),
        (_folder_link, "artifact/x is a symbolic link"),
        (_root_link, "missing or no folder"),
        (_hard_link, "artifact/x.py is a hard link"),
        (_pipe, "artifact/x.py is no regular file"),
        (_binary, "artifact/x.py is binary"),
        (_zero, "artifact/x.py is binary"),
        (_large, "artifact/x.py is larger than"),
        (_large_together, "holds more than"),
        (_many, "more than 64 files"),
        (_many_folders, "too many"),
        (_deep, "too many"),
        (_name, "unusual characters"),
        (_empty, "artifact/ is empty"),
        (_gone, "missing or no folder"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_refused_with_a_reason(
    tmp_path: Path, break_it: Callable[[Path], None], words: str
) -> None:
    tree = made(tmp_path)
    break_it(tree.path)
    with pytest.raises(RefusedTree) as caught:
        tree.read("")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_probe_is_one_file(tmp_path: Path) -> None:
    tree = made(tmp_path, "probe", {})
    with pytest.raises(RefusedTree, match="empty"):
        tree.read("")
    (tree.path / "probe" / "probe.py").write_text("x = 1\n")
    assert tree.read("").source == "x = 1\n"
    (tree.path / "probe" / "more.py").write_text("")
    with pytest.raises(RefusedTree, match=r"one file probe\.py"):
        tree.read("")


def test_credentials_do_not_get_in(tmp_path: Path) -> None:
    tree = made(tmp_path)
    (tree.path / "artifact" / "press.py").write_text("KEY = 'sk-very-secret'\n")
    with pytest.raises(RefusedTree, match="credential") as caught:
        tree.read("", ["sk-very-secret"])
    assert "sk-very" not in str(caught.value)


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "sub/../../out.py"])
def test_a_candidate_cannot_be_written_elsewhere(tmp_path: Path, name: str) -> None:
    tree = Worktree(tmp_path / "tree", "artifact", "task", {name: "x"})
    with pytest.raises(InfrastructureError, match="leads out"):
        tree.create()
    assert not (tmp_path / "tree" / "out.py").exists()
