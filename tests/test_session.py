"""The session against artifacts that misbehave, and what others in the same call get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bad_presses import BAD
from galoop.domains.kv_compression.session import Session
from galoop.domains.text.model_session import EXAMPLES_AT_ONCE, Options
from galoop.errors import UsageError
from galoop.isolation import Limits, Tier, available_tiers
from galoop.types import Candidate, Example, Outcome, State
from presses import (
    by_expression,
    example,
    examples,
    folder_artifact,
    kvpress_answer,
    make_tiny_model,
    model_info,
    one_thread,
    press_that,
)

RATIO = 0.5
BUDGET = {"compression_ratio": RATIO}
GOLD = "zovezo-7391-kubati"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(
    scope="module",
    params=[
        Tier.BUBBLEWRAP,
        pytest.param(Tier.LANDLOCK, marks=pytest.mark.slow),
        Tier.PLAIN,
    ],
)
def session(request: pytest.FixtureRequest, folder: Path) -> Iterator[Session]:
    if request.param not in available_tiers():
        pytest.skip(f"{request.param} does not work on this machine")
    limits = Limits(seconds=20, memory_mb=1024, output_bytes=32 * 2**20)
    options = Options(workers=2, tier=request.param, limits=limits)
    with one_thread(), Session(model_info(folder), options) as opened:
        yield opened


@pytest.fixture
def asked() -> list[Example]:
    return [example(i, 50, answers=(GOLD,)) for i in range(3)]


def run(
    session: Session,
    candidates: dict[str, Candidate],
    asked: list[Example],
    *,
    trusted: bool = False,
) -> dict[str, list[Outcome]]:
    systems = [session.reference()]
    systems += [
        session.artifact(c, BUDGET, name=name, trusted=trusted) for name, c in candidates.items()
    ]
    found: dict[str, list[Outcome]] = {s.name: [] for s in systems}
    for rows in session.run(systems, asked):
        for system, _, outcome in rows:
            found[system.name].append(outcome)
    return found


LATER = folder_artifact(press_that(), name="later")
GOOD = folder_artifact(press_that())
INVALID = State.INVALID


@pytest.mark.parametrize("name", BAD)
def test_misbehaviour_has_a_state_and_a_reason(
    session: Session, asked: list[Example], name: str
) -> None:
    case = BAD[name]
    if case.state is INVALID and session.options.tier is not available_tiers()[0]:
        pytest.skip("what the audit refuses has nothing to do with the tier")
    found = run(session, {"good": GOOD, "bad": case.candidate, "later": LATER}, asked)
    for outcome in found["bad"]:
        assert outcome.state is case.state, outcome.reason
        assert case.reason.lower() in outcome.reason.lower()
        assert outcome.reason
        assert outcome.score is None
        assert outcome.answer == ""
        assert len(outcome.reason) < 1000
    expected = [kvpress_answer(session.info, GOOD, e, RATIO) for e in asked]
    assert [o.answer for o in found["good"]] == expected
    assert [o.answer for o in found["later"]] == expected
    assert [o.answer for o in found["reference"]] == [
        kvpress_answer(session.info, None, e, RATIO) for e in asked
    ]


def test_a_hang_costs_its_limit_once(folder: Path, session: Session, asked: list[Example]) -> None:
    import dataclasses
    import time

    slow = folder_artifact(press_that("while True: pass"))
    asleep = folder_artifact(press_that("time.sleep(1000)"), name="asleep")
    limited = dataclasses.replace(session.options, limits=Limits(seconds=2))
    before, session.options = session.options, limited
    try:
        began = time.monotonic()
        found = run(session, {"slow": slow, "asleep": asleep}, asked * 4)
        assert time.monotonic() - began < 12
    finally:
        session.options = before
    for name in ("slow", "asleep"):
        assert {o.state for o in found[name]} == {State.FAILED}
        assert "2 s" in found[name][0].reason
    assert {o.state for o in found["reference"]} == {State.SCORED}


def test_printing_a_gigabyte_is_harmless(session: Session, asked: list[Example]) -> None:
    loud = folder_artifact(
        press_that(
            "for _ in range(350): print('x' * 2**20)\nreturn keys[:, :, :n], values[:, :, :n]"
        )
    )
    found = run(session, {"loud": loud}, asked[:1])
    assert found["loud"][0].state is State.SCORED, found["loud"][0].reason


def test_what_was_printed_last_is_in_the_reason(session: Session, asked: list[Example]) -> None:
    crash = folder_artifact(press_that("print('about to go'); os._exit(1)"))
    assert "about to go" in run(session, {"crash": crash}, asked[:1])["crash"][0].reason


#: What an artifact may try, and each must be refused. The file is written beside the sources.
TRIES = {
    "fork": "os.fork()",
    "a process": "import subprocess; subprocess.run(['true'])",
    "a socket": "socket.create_connection(('1.1.1.1', 53), 1)",
    "its parent's end": "os.kill(os.getppid(), 9)",
    "everybody's end": "os.kill(-1, 9)",
    "a file": "open(os.path.expanduser('~/galoop-was-here'), 'w').write('x')",
    "the prefill of others": "os.pwrite(request['fds'][0], b'xx', 0)",
}


@pytest.mark.parametrize("name", TRIES)
def test_what_is_refused(session: Session, asked: list[Example], name: str) -> None:
    body = f"""
try:
    frame = sys._getframe()
    while "fds" not in frame.f_locals:
        frame = frame.f_back
    request = frame.f_locals
    {TRIES[name]}
except BaseException as error:
    raise RuntimeError("refused with " + type(error).__name__) from None
raise RuntimeError("it was done")
"""
    found = run(session, {"bad": folder_artifact(press_that(body)), "good": GOOD}, asked)
    assert "refused with" in found["bad"][0].reason, found["bad"][0].reason
    assert {o.state for o in found["good"]} == {State.SCORED}


def test_neither_question_nor_gold_answer_reaches_a_candidate(
    session: Session, asked: list[Example]
) -> None:
    body = f"""
import gc
needle = "".join([{GOLD[:6]!r}, {GOLD[6:]!r}])
gc.unfreeze()
frame, requests = sys._getframe(), []
while frame is not None:
    requests += [sorted(v) for v in frame.f_locals.values() if isinstance(v, dict) and "op" in v]
    frame = frame.f_back
texts = [r for o in gc.get_objects() for r in gc.get_referents(o) if isinstance(r, (str, bytes))]
hits = [t for t in texts if t is not needle and needle in (t if isinstance(t, str) else repr(t))]
raise RuntimeError(f"requests {{requests[0]}} hits {{len(hits)}} of {{len(texts) > 10**4}}")
"""
    outcome = run(session, {"curious": folder_artifact(press_that(body))}, asked)["curious"][0]
    assert "requests ['layout', 'op', 'seed'] hits 0 of True" in outcome.reason


def test_changed_weights_stay_in_the_artifacts_own_process(
    session: Session, asked: list[Example]
) -> None:
    vandal = folder_artifact(
        press_that(
            "with torch.inference_mode():\n"
            "    for p in module.parameters(): p.zero_()\n"
            "    hidden_states.zero_(); keys.zero_(); values.zero_()\n"
            "return keys[:, :, :n], values[:, :, :n]"
        )
    )
    again = folder_artifact(press_that(), name="again")
    snap = by_expression("SnapKVPress(window_size=8)", RATIO)  # reads the projections' weights
    found = run(session, {"vandal": vandal, "snap": snap, "again": again}, asked)
    assert {o.state for o in found["vandal"]} == {State.SCORED}
    for name, candidate in (("snap", snap), ("again", again), ("reference", None)):
        expected = [kvpress_answer(session.info, candidate, e, RATIO) for e in asked]
        assert [o.answer for o in found[name]] == expected


def test_a_press_starts_afresh_with_every_example(session: Session) -> None:
    """Which examples share a process is a matter of scheduling and must not decide an answer."""
    counting = folder_artifact(
        "calls = []\n"
        + press_that(
            "calls.append(1)\nn = max(1, n - len(calls))\nreturn keys[:, :, :n], values[:, :, :n]"
        )
    )
    asked = examples(6)
    forwards = run(session, {"counting": counting}, asked)["counting"]
    backwards = run(session, {"counting": counting}, asked[::-1])["counting"][::-1]
    fractions = [o.measured["kept_fraction"] for o in forwards]
    assert fractions == [o.measured["kept_fraction"] for o in backwards]
    assert [o.answer for o in forwards] == [o.answer for o in backwards]


def test_an_artifact_that_fails_on_a_later_example(session: Session) -> None:
    asked = [example(i, 40 + i) for i in range(EXAMPLES_AT_ONCE + 4)]
    lengths = [len(session.tokenise(e)[0]) for e in asked]
    fragile = folder_artifact(
        press_that(
            f"if keys.shape[2] == {lengths[4]}: raise ValueError('not this one')\n"
            "return keys[:, :, :n], values[:, :, :n]"
        )
    )
    found = run(session, {"fragile": fragile}, asked)
    assert len(found["reference"]) == EXAMPLES_AT_ONCE + 4
    states = [o.state for o in found["fragile"]]
    assert states[4] is State.FAILED
    assert states[:4] == [State.SCORED] * 4
    assert len(states) == EXAMPLES_AT_ONCE  # not evaluated in the chunks that follow
    assert all(n != lengths[4] for i, n in enumerate(lengths) if i != 4)


def test_forged_replies_of_the_pipeline(session: Session, asked: list[Example]) -> None:
    """Only installed code runs in this mode; what it says is checked all the same."""
    replies = (
        "{'tokens': ['7'], 'kept': [1, 1, 1]}",
        "{'tokens': [10**9], 'kept': [1, 1, 1]}",
        "{'tokens': [-1], 'kept': [1, 1, 1]}",
        "{'tokens': [], 'kept': [1, 1, 1]}",
        "{'tokens': [5] * 999, 'kept': [1, 1, 1]}",
        "{'tokens': [5], 'kept': [1]}",
        "{'tokens': [5], 'kept': None}",
        "{}",
    )
    candidates = {
        reply: folder_artifact(
            press_that(
                load="import galoop.domains.kv_compression.worker as worker\n"
                f"worker._pipeline = lambda *a: {reply}"
            ),
            mode="pipeline",
        )
        for reply in replies
    }
    found = run(session, candidates, asked, trusted=True)
    for reply in replies:
        assert {o.state for o in found[reply]} == {State.INVALID}
        assert "not an answer" in found[reply][0].reason


def test_the_pipeline_keeps_the_budget_too(session: Session, asked: list[Example]) -> None:
    wide = folder_artifact(press_that("return keys, values"), mode="pipeline")
    outcome = run(session, {"wide": wide}, asked, trusted=True)["wide"][0]
    assert outcome.state is State.INVALID
    assert "over budget" in outcome.reason


def _only_once(session: Session) -> None:
    if session.options.tier is not Tier.PLAIN:
        pytest.skip("starting the server takes seconds, and the tier has no part in it")


def test_the_model_server_is_started_again(session: Session, asked: list[Example]) -> None:
    """Whoever ends it (out of memory, say): nothing is lost."""
    _only_once(session)
    run(session, {"good": GOOD}, asked)
    server = session._server
    assert server is not None
    server._process.kill()
    found = run(session, {"good": GOOD}, asked)
    assert {o.state for o in found["good"]} == {State.SCORED}
    assert session._server is not server


def test_the_server_ends_while_artifacts_run(session: Session, asked: list[Example]) -> None:
    """Everybody in flight is tried once more in a new server."""
    _only_once(session)
    import threading
    import time

    slow = folder_artifact(press_that("time.sleep(0.4)\nreturn keys[:, :, :n], values[:, :, :n]"))
    run(session, {"good": GOOD}, asked)
    server = session._server
    assert server is not None

    def end() -> None:
        time.sleep(0.6)
        server._process.popen.kill()

    killer = threading.Thread(target=end)
    killer.start()
    found = run(session, {"slow": slow, "good": GOOD}, asked)
    killer.join()
    assert {o.state for o in [*found["slow"], *found["good"]]} == {State.SCORED}


def test_contexts_longer_than_the_window(session: Session) -> None:
    with pytest.raises(UsageError, match=r"the window of tiny holds 1024"):
        run(session, {}, [example(0, 1100)])


def test_keys_say_what_outcomes_depend_on(session: Session) -> None:
    a = session.artifact(GOOD, BUDGET, name="a")
    assert a.key == session.artifact(GOOD, dict(BUDGET), name="b").key
    others = {
        session.artifact(GOOD, {"compression_ratio": 0.4}, name="a").key,
        session.artifact(folder_artifact(press_that("raise ValueError")), BUDGET, name="a").key,
        session.reference().key,
        Session(model_info(session.info.path, "bfloat16")).artifact(GOOD, BUDGET, name="a").key,
    }
    assert len(others | {a.key}) == 5


def test_extra_budgets_bind_where_they_are_named(session: Session, asked: list[Example]) -> None:
    zip_ = by_expression("KVzipPress()", RATIO)
    for extra, state in ((0.5, State.INVALID), (4.0, State.SCORED)):
        budget = {**BUDGET, "extra_forward_passes": extra}
        system = session.artifact(zip_, budget, name="kvzip")
        ((_, _, outcome),) = next(iter(session.run([system], asked[:1])))
        assert outcome.state is state
        assert 1.0 <= outcome.measured["extra_forward_passes"] <= 3.0
    slow = folder_artifact(press_that("time.sleep(0.2)\nreturn keys[:, :, :n], values[:, :, :n]"))
    system = session.artifact(slow, {**BUDGET, "added_latency": 1.0}, name="slow")
    ((_, _, outcome),) = next(iter(session.run([system], asked[:1])))
    assert outcome.state is State.INVALID
    assert "added latency" in outcome.reason
