"""Slices on disk: what is read back is what was frozen, and nothing else is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fake_programs as fake
from galoop.benchmark import Slice, freeze, read_slice
from galoop.errors import ExitCode, StoreError
from galoop.store.run import RunStore
from galoop.types import Candidate, Example

ODD = 'say "é\u2028\U0001f600" \\ \t and\nmore\r\n\x85\x1c'
EXAMPLES = tuple(
    replace(fake.draw(0, 0.0, i), context=f"{ODD} {i}", answers=("a", ODD), evidence=(ODD,))
    for i in range(12)
)
SLICE = Slice(
    "B1",
    Candidate("probe", {"probe.py": f'"""é {chr(0x2028)}"""\r\nX = 1\rY = 2\n'}, ODD),
    EXAMPLES[:7],
    EXAMPLES[7:],
    {"round": 1, "budget": {"compression_ratio": 0.75}, "versions": {"galoop": "0.1.0"}},
)
FILES = ("probe.py", "examples.jsonl", "sealed.jsonl", "slice.json")


@pytest.fixture
def store(fast_path: Path) -> Iterator[RunStore]:
    with RunStore.create_or_open(fast_path / "run", {}) as store:
        yield store


@pytest.fixture
def folder(store: RunStore) -> Path:
    freeze(store, "benchmark/B1", SLICE)
    return store.path / "benchmark" / "B1"


def test_what_is_read_is_what_was_frozen(folder: Path) -> None:
    read = read_slice(folder)
    assert read.name == "B1"
    assert read.probe == SLICE.probe
    assert read.probe.key == SLICE.probe.key
    assert read.open == SLICE.open
    assert read.sealed == SLICE.sealed
    assert [e.key for e in read.open] == [e.key for e in SLICE.open]
    assert SLICE.about.items() <= read.about.items()
    assert read.about["probe_key"] == SLICE.probe.key


def test_one_line_an_example(folder: Path) -> None:
    lines = (folder / "examples.jsonl").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 8
    assert lines[-1] == ""
    assert [Example.from_json(json.loads(line)) for line in lines[:-1]] == list(SLICE.open)


def test_freezing_again_changes_nothing(store: RunStore, folder: Path) -> None:
    before = {name: ((folder / name).read_bytes(), (folder / name).stat()) for name in FILES}
    freeze(store, "benchmark/B1", SLICE)
    for name, (data, stat) in before.items():
        assert (folder / name).read_bytes() == data
        assert (folder / name).stat().st_mtime_ns == stat.st_mtime_ns
    assert {path.name for path in folder.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("how", ["append", "one character", "empty", "reordered", "line ends"])
def test_a_changed_file_is_refused(folder: Path, name: str, how: str) -> None:
    data = (folder / name).read_bytes()
    lines = data.splitlines(keepends=True)
    changed = {
        "append": data + b"\n",
        "one character": data.replace(b"1", b"2", 1),
        "empty": b"",
        "reordered": b"".join(reversed(lines)),
        "line ends": data.replace(b"\n", b"\r\n"),
    }[how]
    assert changed != data
    (folder / name).write_bytes(changed)
    with pytest.raises(StoreError, match=f"{name}: was changed after it was frozen") as caught:
        read_slice(folder)
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StoreError, match=f"not a slice folder: {name} is missing"):
        read_slice(folder)


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_another_schema_is_refused(folder: Path, schema: object) -> None:
    about = json.loads((folder / "slice.json").read_text(encoding="utf-8"))
    (folder / "slice.json").write_text(json.dumps({**about, "schema": schema}))
    with pytest.raises(StoreError, match=rf"slice schema {schema!r}, this galoop reads 1"):
        read_slice(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"', "\udcff"])
def test_a_broken_description_is_refused(folder: Path, text: str) -> None:
    (folder / "slice.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StoreError, match=r"slice"):
        read_slice(folder)


@pytest.mark.parametrize("key", ["sha256", "name", "note"])
def test_a_description_without_a_key(folder: Path, key: str) -> None:
    about = json.loads((folder / "slice.json").read_text(encoding="utf-8"))
    del about[key]
    (folder / "slice.json").write_text(json.dumps(about))
    if key == "note":
        assert read_slice(folder).probe.note == ""
    else:
        with pytest.raises(StoreError):
            read_slice(folder)


@pytest.mark.parametrize("where", ["absent", "a file", "an empty folder"])
def test_what_is_no_slice_folder(tmp_path: Path, where: str) -> None:
    path = tmp_path / "x"
    if where == "a file":
        path.write_text("text")
    elif where == "an empty folder":
        path.mkdir()
    with pytest.raises(StoreError, match="slice"):
        read_slice(path)


def test_a_half_written_slice_is_no_slice(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    real = store.write_text

    def until_the_third(relative: str, text: str) -> Path:
        if len(written) == 3:
            raise StoreError("the disk is full")
        written.append(relative)
        return real(relative, text)

    monkeypatch.setattr(store, "write_text", until_the_third)
    with pytest.raises(StoreError, match="full"):
        freeze(store, "benchmark/B2", SLICE)
    with pytest.raises(StoreError, match=r"slice\.json is missing"):
        read_slice(store.path / "benchmark" / "B2")
    monkeypatch.undo()
    freeze(store, "benchmark/B2", SLICE)
    assert read_slice(store.path / "benchmark" / "B2").open == SLICE.open
