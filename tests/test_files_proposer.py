"""Proposals from files and from recorded runs: requests, answers, resume, replay."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import World
from fake_programs import artifact, probe
from galoop.errors import InfrastructureError, StoreError, UsageError
from galoop.hashing import content_hash
from galoop.loop import discover, run_loop
from galoop.proposers.files import FilesProposer
from galoop.proposers.protocol import Evaluated, Request, Seat, Task
from galoop.proposers.recorded import RecordedProposer
from galoop.report.progress import NullProgress
from galoop.search.protocol import StopSearch
from galoop.store.run import RunStore
from galoop.types import Candidate, Excerpt, Feedback, State
from loop_tools import small

QUIET = NullProgress()
PROGRAM = probe(2, salt=7)
FEEDBACK = Feedback(
    State.SCORED,
    0.75,
    {"reference_accuracy": 1.0, "gap": 0.5},
    excerpts=(Excerpt("a text\nasked?", "gold", "right", "wrong", "lost"),),
)


def proposer(tmp_path: Path, kind: Any = "probe", **files: Any) -> FilesProposer:
    knobs = {f"files__{name}": value for name, value in {"poll": 0.01, **files}.items()}
    stage = "round-1/discriminator"
    folder = tmp_path / "run" / "proposers" / stage
    return FilesProposer(Seat("fake", kind, 0, fake.config(**knobs), folder, stage))


def request(index: int = 0, parent: Candidate | None = None, **changes: Any) -> Request:
    one = Evaluated(parent, FEEDBACK) if parent is not None else None
    kind = parent.kind if parent is not None else "probe"
    history = (one,) if one is not None else ()
    return Request(Task(kind, "fake", "break it", "", ""), index, one, history, **changes)


@contextmanager
def somebody(folder: Path, answer: Callable[[Path], None]) -> Iterator[list[Path]]:
    """Answers each request that appears below ``folder``, once, from another thread."""
    seen: list[Path] = []
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                found = sorted(folder.rglob("request.json"))
            except OSError:  # a scratch folder was renamed in the middle of the walk
                continue
            for path in found:
                place = path.parent
                if place not in seen and not place.name.startswith("."):
                    seen.append(place)
                    answer(place)
            time.sleep(0.005)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def write_answer(place: Path, text: str) -> None:
    (place / "answer.tmp").write_text(text)
    (place / "answer.tmp").rename(place / "answer.md")


def markdown(candidate: Candidate) -> str:
    return f"Change: {candidate.note}\n\n```python\n{candidate.source}```\n"


# -- one request ---------------------------------------------------------------------------


def test_a_request_says_everything_and_appears_whole(tmp_path: Path) -> None:
    parent = artifact(0.1, 0.2, 0.3)
    listed: list[list[str]] = []

    def answer(place: Path) -> None:
        listed.append(sorted(p.relative_to(place).as_posix() for p in place.rglob("*")))
        write_answer(place, "```json params.json\n{}\n```\n")

    with somebody(tmp_path, answer) as seen:
        made = proposer(tmp_path, "artifact").propose(request(3, parent))
    assert made.candidate is not None
    assert dict(made.candidate.files) == {"params.json": "{}\n"}
    assert made.cost.dollars == 0.0
    assert made.cost.seconds > 0
    (place,) = seen
    assert place == tmp_path / "run/proposers/round-1/discriminator/0003.0"
    assert listed == [
        ["feedback.json", "parent", "parent/params.json", "prompt.md", "request.json"]
    ]
    assert (place / "parent/params.json").read_text() == parent.files["params.json"]
    prompt = (place / "prompt.md").read_text()
    assert "break it" in prompt
    assert "0.750" in prompt
    feedback = json.loads((place / "feedback.json").read_text())
    assert feedback["parent"]["score"] == 0.75
    assert feedback["parent"]["excerpts"] == [
        {
            "prompt": "a text\nasked?",
            "gold": "gold",
            "reference": "right",
            "artifact": "wrong",
            "verdict": "lost",
        }
    ]
    about = json.loads((place / "request.json").read_text())
    assert (about["index"], about["attempt"], about["kind"]) == (3, 0, "artifact")


def test_an_answer_may_be_a_folder(tmp_path: Path) -> None:
    def answer(place: Path) -> None:
        (place / "made").mkdir()
        (place / "made" / "probe.py").write_text(PROGRAM.source)
        (place / "made").rename(place / "answer")

    with somebody(tmp_path, answer):
        made = proposer(tmp_path).propose(request())
    assert made.candidate == Candidate("probe", PROGRAM.files, "files of 0000.0")


def test_an_answer_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    text = markdown(PROGRAM)

    def slowly(place: Path) -> None:
        for end in range(0, len(text), 12):  # an editor that does not rename
            (place / "answer.md").write_text(text[:end])
            time.sleep(0.01)
        (place / "answer.md").write_text(text)

    with somebody(tmp_path, slowly):
        made = proposer(tmp_path, poll=0.05).propose(request())
    assert made.candidate is not None
    assert made.candidate.key == PROGRAM.key


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"other.py": "x = 1\n"}, "one file, probe.py"),
        ({"probe.py": b"\xff\xfe"}, "cannot be read"),
        ({"probe.py": "x = 1\n", "more.py": "x = 1\n"}, "one file"),
    ],
)
def test_a_folder_that_is_no_candidate(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    def answer(place: Path) -> None:
        (place / "made").mkdir()
        for name, data in files.items():
            (place / "made" / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        (place / "made").rename(place / "answer")

    with somebody(tmp_path, answer):
        made = proposer(tmp_path).propose(request())
    assert made.candidate is None
    assert words in made.rejected


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SPEC = 'secret'\n")

    def answer(place: Path) -> None:
        (place / "made").mkdir()
        (place / "made" / "probe.py").symlink_to(secret)
        (place / "made").rename(place / "answer")

    with somebody(tmp_path / "run", answer):
        made = proposer(tmp_path).propose(request())
    assert made.candidate is None
    assert "is a link" in made.rejected


def test_an_unreadable_answer_is_asked_again_in_a_folder_of_its_own(tmp_path: Path) -> None:
    seat = proposer(tmp_path)
    with somebody(tmp_path, lambda place: write_answer(place, "I do not know")):
        made = seat.propose(request())
    assert made.candidate is None
    with somebody(tmp_path, lambda place: write_answer(place, markdown(PROGRAM))) as seen:
        made = seat.propose(request(rejected=(made.rejected,)))
    assert made.candidate is not None
    assert seen[-1].name == "0000.1"
    assert "no fenced block" in (seen[-1] / "prompt.md").read_text()


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"no answer within 0.05 s: .*0000\.0") as error:
        proposer(tmp_path, timeout=0.05).propose(request())
    assert "same command" in error.value.fix


def test_stop(tmp_path: Path) -> None:
    with (
        somebody(tmp_path, lambda place: (place / "stop").touch()),
        pytest.raises(StopSearch, match="says stop"),
    ):
        proposer(tmp_path).propose(request())


def test_a_folder_of_another_request_is_refused_and_of_the_same_one_taken(tmp_path: Path) -> None:
    own = str(tmp_path / "mine")
    with somebody(tmp_path, lambda place: write_answer(place, markdown(PROGRAM))) as seen:
        proposer(tmp_path, folder=own).propose(request())
    assert seen[0] == tmp_path / "mine/round-1/discriminator/0000.0"
    made = proposer(tmp_path, folder=own).propose(request())  # nobody is there any more
    assert made.candidate is not None
    with pytest.raises(UsageError, match="another request"):
        proposer(tmp_path, folder=own).propose(request(parent=probe(1)))


def test_a_key_of_the_environment_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    parent = Candidate("probe", {"probe.py": "X = 1\n"}, "quotes sk-0123456789")
    with somebody(tmp_path, lambda place: write_answer(place, markdown(PROGRAM))):
        proposer(tmp_path).propose(request(1, parent))
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or "sk-0123456789" not in path.read_text()


# -- whole runs ----------------------------------------------------------------------------


def clever(place: Path) -> None:
    """Writes a random program, the same one for the same prompt."""
    rng = random.Random(content_hash((place / "prompt.md").read_text()))
    if json.loads((place / "request.json").read_text())["kind"] == "artifact":
        made = artifact(
            round(rng.random(), 2), 1.0, round(rng.random(), 2), salt=rng.getrandbits(20)
        )
        return write_answer(place, f"```json params.json\n{made.files['params.json']}```\n")
    return write_answer(place, markdown(probe(rng.randrange(3), 0.0, rng.getrandbits(20))))


def seated(name: str, **changes: Any) -> Any:
    return small(
        discriminator__proposer=name,
        generator__proposer=name,
        **{"files__poll": 0.005, "files__timeout": 60.0, **changes},
    )


def comparable(result: Any) -> Any:
    return (
        result.slices,
        result.generations,
        [(s.search, s.candidates, s.evaluations, s.best, s.curve) for s in result.searches],
    )


def test_a_loop_by_hand_stopped_resumed_and_reproduced(world: World, fast_path: Path) -> None:
    with somebody(fast_path / "run", clever) as seen:
        first = run_loop(seated("files"), fast_path / "run", QUIET)
    assert first.slices
    assert any(g.accepted for g in first.generations)
    assert len(seen) == len(list((fast_path / "run").rglob("prompt.md")))

    # Stopped in the middle because nobody was there, and gone on with.
    answered: list[Path] = []

    def half(place: Path) -> None:
        answered.append(place)
        if len(answered) <= len(seen) // 2:
            clever(place)

    with somebody(fast_path / "half", half), pytest.raises(InfrastructureError, match="no answer"):
        run_loop(seated("files", files__timeout=1.0), fast_path / "half", QUIET)
    with RunStore.open(fast_path / "half") as store:
        before = len(store.events("proposal"))
    assert before == len(seen) // 2
    with somebody(fast_path / "half", lambda p: None if (p / "answer.md").exists() else clever(p)):
        again = run_loop(seated("files"), fast_path / "half", QUIET)
    assert comparable(again) == comparable(first)

    # Reproduced from the record, with nobody and without the folder of requests.
    shutil.rmtree(fast_path / "run" / "proposers")
    config = seated("recorded", recorded__run=str(fast_path / "run"))
    copy = run_loop(config, fast_path / "copy", QUIET)
    assert comparable(copy) == comparable(first)
    with RunStore.open(fast_path / "copy") as store:
        assert store.totals("kind")["proposal"].dollars == 0.0
        assert len(store.events("proposal")) == len(seen)


def test_the_folder_itself_reproduces_a_run(world: World, fast_path: Path) -> None:
    own = {"files__folder": str(fast_path / "mine"), "discriminator__max_candidates": 6}
    with somebody(fast_path / "mine", clever):
        first = discover(seated("files", **own), fast_path / "a", QUIET)
    again = discover(seated("files", **own), fast_path / "b", QUIET)
    assert comparable(again) == comparable(first)


def test_a_run_of_the_grammar_s_kind_is_reproduced_too(
    base: Path, world: World, fast_path: Path
) -> None:
    config = seated("recorded", recorded__run=str(base))
    copy = run_loop(config, fast_path / "copy", QUIET)
    first = run_loop(small(), fast_path / "first", QUIET)
    assert comparable(copy) == comparable(first)


# -- recorded ------------------------------------------------------------------------------


def recorded(run: Path, folder: Path, stage: str = "round-1/discriminator") -> RecordedProposer:
    config = fake.config(recorded__run=str(run))
    return RecordedProposer(Seat("fake", "probe", 0, config, folder / "proposers" / stage, stage))


def test_what_cannot_be_handed_back(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recorded\.run is empty"):
        RecordedProposer(Seat("fake", "probe", 0, fake.config(), tmp_path, "s"))
    with pytest.raises(StoreError, match="not a run folder"):
        recorded(tmp_path, tmp_path / "other")
    with pytest.raises(UsageError, match="this run itself"):
        recorded(base, base)
    seat = recorded(base, tmp_path)
    with pytest.raises(StopSearch, match="nothing more"):
        seat.propose(request(999))
    with pytest.raises(StoreError, match="another parent"):
        seat.propose(request(0, parent=probe(1, salt=123456)))
    with pytest.raises(StopSearch):
        recorded(base, tmp_path, "round-9/generator").propose(request(0))


def test_no_scratch_folder_is_left(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError):
        proposer(tmp_path, timeout=0.02).propose(request())
    folder = tmp_path / "run/proposers/round-1/discriminator"
    assert [p.name for p in folder.iterdir()] == ["0000.0"]
