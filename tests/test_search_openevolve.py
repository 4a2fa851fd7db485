"""OpenEvolve in its subprocess: it decides, we propose and evaluate, and it cannot do more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine_tools import AXES, TASK, Climber, Judge, Trader, value
from fake_programs import artifact
from galoop.errors import InfrastructureError, UsageError
from galoop.proposers.protocol import Proposal, Request
from galoop.search import openevolve
from galoop.search.openevolve import EngineProcess, OpenEvolveSearch
from galoop.search.protocol import Problem, StopSearch
from galoop.types import Candidate, Feedback, State

pytest.importorskip("openevolve")

START = [artifact(0.3, 0.3, 0.0)]
HERE = Path(__file__).parent


def search(
    judge: Any,
    proposer: Any,
    start: Sequence[Candidate] = (),
    seed: int = 0,
    fresh: int = 0,
    axes: Sequence[str] = AXES,
) -> str:
    return OpenEvolveSearch().run(Problem(TASK, proposer, judge, axes, seed, start, fresh))


def children() -> list[int]:
    """Processes of ours that are alive."""
    alive = psutil.Process().children(recursive=True)
    return [p.pid for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def nothing_left() -> Any:
    before = set(children())
    yield
    assert set(children()) == before, "a process was left behind"


# -- the search ----------------------------------------------------------------------------


def test_a_search_improves_and_changes_the_better_programs() -> None:
    judge, proposer = Judge(60), Climber(5)
    search(judge, proposer, [artifact(0.2, 0.2, 0.0)], 5)
    scores = [sum(value(c)) / 2 for c in judge.seen]
    assert max(scores) > 0.5, "selection of parents must beat a walk around 0.2"
    ranks = []
    for request in proposer.requests[20:]:
        assert request.parent is not None
        so_far = [e.feedback.score for e in request.history]
        ranks.append(sum(s < request.parent.feedback.score for s in so_far) / len(so_far))
    assert sum(ranks) / len(ranks) > 0.6, "0.5 for parents that are drawn blindly"


def test_it_keeps_programs_that_differ() -> None:
    # On a front where every program has the same score, the grid keeps many of them as parents.
    proposer = Trader(0)
    search(Judge(30), proposer, [artifact(0.5, 0.5, 0.0)])
    assert len({r.parent.candidate.key for r in proposer.requests if r.parent}) >= 8


def test_the_proposer_sees_our_feedback_and_all_of_the_history() -> None:
    judge, proposer = Judge(20, lambda n: n % 4 == 0), Climber(3)
    search(judge, proposer, START)
    assert [r.index for r in proposer.requests] == list(range(len(proposer.requests)))
    for request in proposer.requests:
        shown = [e.candidate.key for e in request.history]
        assert shown == [c.key for c in judge.seen[: len(shown)]], "oldest first, none left out"
        assert request.parent in request.history
        assert request.parent is not None
        assert request.parent.feedback.state is State.SCORED, "a failure is no parent"
    states = [e.feedback.state for e in proposer.requests[-1].history]
    assert states.count(State.INVALID) >= 4


def test_several_starts_are_all_evaluated_and_spread_over_the_islands() -> None:
    start = [artifact(0.1, 0.1, 0.0), artifact(0.6, 0.6, 0.0), artifact(0.2, 0.2, 0.0)]
    judge, proposer = Judge(6), Climber(1)
    search(judge, proposer, start)
    assert [c.key for c in judge.seen[:3]] == [c.key for c in start]
    parents = [r.parent.candidate.key for r in proposer.requests[:3] if r.parent]
    assert parents[0] == start[1].key, "the best begins on the first island"
    assert len(set(parents)) >= 2


@pytest.mark.parametrize("start", [[], START], ids=["seedless", "seeded"])
def test_some_candidates_are_written_from_nothing_first(start: list[Candidate]) -> None:
    judge, proposer = Judge(9), Climber(1)
    search(judge, proposer, start, fresh=4)
    parents = [r.parent for r in proposer.requests]
    assert parents[:4] == [None] * 4
    assert None not in parents[4:]


def test_one_objective_is_enough() -> None:
    def judge(candidate: Candidate) -> Feedback:
        seen.append(candidate)
        if len(seen) > 12:
            raise StopSearch("enough")
        left, _ = value(candidate)
        return Feedback(State.SCORED, left, {"left": left})

    seen: list[Candidate] = []
    assert search(judge, Climber(1), START, axes=("left",)) == "enough"


# -- how it ends ---------------------------------------------------------------------------


def test_nothing_is_evaluated_after_the_stop() -> None:
    judge, proposer = Judge(9), Climber(1)
    assert search(judge, proposer, START) == "candidates: 9 tried"
    assert (len(judge.seen), judge.stopped, len(proposer.requests)) == (9, 1, 9)


@pytest.mark.parametrize("cap", [0, 1])
@pytest.mark.parametrize("start", [[], START], ids=["seedless", "seeded"])
def test_a_stop_at_the_very_first_candidates(cap: int, start: list[Candidate]) -> None:
    judge = Judge(cap)
    assert search(judge, Climber(1), start) == f"candidates: {cap} tried"
    assert len(judge.seen) == cap


def test_errors_of_evaluation_and_proposer_propagate() -> None:
    class Broken(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            if len(self.seen) == 5:
                raise InfrastructureError("the model server died")
            return super().__call__(candidate)

    with pytest.raises(InfrastructureError, match="the model server died"):
        search(Broken(20), Climber(1), START)
    proposer = Climber(1, 4, InfrastructureError("no answer from the API"))
    with pytest.raises(InfrastructureError, match="no answer from the API"):
        search(Judge(50), proposer, START)
    assert len(proposer.requests) == 4, "asked no second time"
    assert search(Judge(50), Climber(1, 5, StopSearch("dollars: spent")), START) == "dollars: spent"


def test_an_interrupt_goes_through() -> None:
    class Interrupted(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            if len(self.seen) == 4:
                raise KeyboardInterrupt
            return super().__call__(candidate)

    with pytest.raises(KeyboardInterrupt):
        search(Interrupted(50), Climber(1), START)


def test_a_search_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TMPDIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    temporary = set(Path("/tmp").iterdir())
    search(Judge(10), Climber(1))
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")
    assert list(tmp_path.iterdir()) == []
    new = set(Path("/tmp").iterdir()) - temporary
    assert not [path for path in new if "evol" in path.name.lower()]


def test_every_text_passes_through_unchanged() -> None:
    strange = Candidate("artifact", {"a/b.txt": '"\u2028\r\n\x00é\U0001f600```\n'}, "note \u2028")

    class Strange(Climber):
        def propose(self, request: Request) -> Proposal:
            self.requests.append(request)
            if len(self.requests) == 1:
                return Proposal(strange)
            return Proposal(artifact(0.1, 0.1, 0.0, salt=len(self.requests)))

    seen: list[Candidate] = []

    def judge(candidate: Candidate) -> Feedback:
        if len(seen) == 4:
            raise StopSearch("enough")
        seen.append(candidate)
        return Feedback(State.SCORED, 0.5, dict.fromkeys(AXES, 0.5))

    proposer = Strange(1)
    assert search(judge, proposer) == "enough"
    assert dict(seen[0].files) == dict(strange.files)
    assert proposer.requests[1].parent is not None
    assert proposer.requests[1].parent.candidate is strange


# -- a process that is not to be trusted ----------------------------------------------------

HEAD = "import sys, os, json, time, socket\nline = socket.socket(fileno=int(sys.argv[1]))\n"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a program in the place of OpenEvolve's."""

    def put(code: str, patience: float = 20.0) -> None:
        program = tmp_path / "hostile.py"
        program.write_text(HEAD + code)
        monkeypatch.setattr(
            openevolve, "EngineProcess", lambda: EngineProcess(program, patience=patience)
        )

    return put


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("line.sendall(b'hello\\n'); time.sleep(60)", "sent what is no message: b'hello'"),
        ("line.sendall(b'[1]\\n'); time.sleep(60)", "sent what is no message"),
        ("line.sendall(b'[' * 4000 + b'\\n'); time.sleep(60)", "sent what is no message"),
        ("line.sendall(b'\\xff\\xfe\\n'); time.sleep(60)", "sent what is no message"),
        ("line.sendall(b'x' * 10**5); time.sleep(60)", "sent a line that is too long"),
        ('line.sendall(b\'{"parent": "0000"}\\n\')', "asked for a child of an unknown program"),
        ("line.sendall(b'{\"parent\": [1]}\\n')", "asked for a child of an unknown program"),
        ("line.sendall(b'{\"score\": 1.0}\\n')", "asked for a child of an unknown program"),
        ("line.recv(9); sys.exit('no such option')", "ended by itself.*exit 1.*no such option"),
        ("line.recv(10**6); raise ValueError('bad')", "exit 1.*ValueError: bad"),
        ("line.recv(10**6); line.close(); time.sleep(60)", "ended by itself"),
        ("os.kill(os.getpid(), 9)", "exit -9"),
    ],
)
def test_what_it_must_not_say_ends_the_search(
    hostile: Callable[..., None], code: str, message: str
) -> None:
    hostile(code)
    judge = Judge(50)
    with pytest.raises(InfrastructureError, match=message):
        search(judge, Climber(1), START)
    assert len(judge.seen) == 1, "nothing was evaluated for it"


def test_a_silent_process_is_not_waited_for_for_ever(hostile: Callable[..., None]) -> None:
    hostile("time.sleep(600)", patience=0.3)
    with pytest.raises(InfrastructureError, match=r"said nothing for 0\.3 s"):
        search(Judge(9), Climber(1), START)


def test_a_flood_of_words_blocks_nothing_and_a_flood_of_requests_is_capped(
    hostile: Callable[..., None],
) -> None:
    hostile(
        "sys.stdout.write('x' * 3_000_000); sys.stdout.flush()\n"
        "told = json.loads(line.makefile('rb').readline())\n"
        "name = told['programs'][0]['text'].split()[0]\n"
        "while True: line.sendall(json.dumps({'parent': name}).encode() + b'\\n')\n"
    )
    judge = Judge(12)
    assert search(judge, Climber(1), START) == "candidates: 12 tried"
    assert len(judge.seen) == 12


def test_its_environment_holds_nothing_of_ours(
    hostile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    hostile("sys.exit(json.dumps([sorted(os.environ), os.getcwd(), len(os.listdir('/dev/fd'))]))")
    with pytest.raises(InfrastructureError, match="exit 1") as caught:
        search(Judge(9), Climber(1), START)
    names, folder, descriptors = json.loads(str(caught.value).split("(exit 1): ")[1])
    assert set(names) <= {"PATH", "LANG", "LC_CTYPE", "PYTHONHASHSEED"}
    assert folder == "/"
    assert descriptors <= 5, "standard streams, the line, and the listing itself"


def test_a_kill_of_the_process_is_an_error_and_not_an_end() -> None:
    class Killer(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            if len(self.seen) == 6:
                for pid in children():
                    os.kill(pid, signal.SIGKILL)
            return super().__call__(candidate)

    judge = Killer(50)
    with pytest.raises(InfrastructureError, match=r"OpenEvolve's process .*exit -9"):
        search(judge, Climber(1), START)
    assert len(judge.seen) == 7


PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import test_search_openevolve as t
from galoop.search import openevolve
from galoop.search.openevolve import EngineProcess

class Slow(t.Judge):
    def __call__(self, candidate):
        if len(self.seen) == 5:
            print(*t.children(), flush=True)
            time.sleep(600)
        return super().__call__(candidate)

if sys.argv[2]:
    openevolve.EngineProcess = lambda: EngineProcess(t.Path(sys.argv[2]))
t.search(Slow(50), t.Climber(1), t.START)
"""

BUSY = HEAD + (
    "import ctypes, signal, importlib.util\n"
    "spec = importlib.util.spec_from_file_location('process', PROCESS)\n"
    "process = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(process)\n"
    "process.confine()\n"
    "told = json.loads(line.makefile('rb').readline())\n"
    "name = told['programs'][0]['text'].split()[0]\n"
    "for _ in range(5): line.sendall(json.dumps({'parent': name}).encode() + b'\\n')\n"
    "while True: pass\n"
)


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "busy"])
def test_a_kill_of_the_parent_leaves_nothing_behind(tmp_path: Path, busy: bool) -> None:
    program = ""
    if busy:
        program = str(tmp_path / "busy.py")
        Path(program).write_text(BUSY.replace("PROCESS", repr(str(openevolve._PROCESS))))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(HERE), program], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 1, "one process, without helpers"
    parent.kill()
    parent.wait()
    until = time.monotonic() + 10.0
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("found", [None, "0.4.0"])
def test_without_the_right_openevolve_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise openevolve.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(openevolve, "version", version)
    with pytest.raises(UsageError, match=r"pip install 'galoop\[openevolve\]'"):
        search(Judge(9), Climber(1), START)
