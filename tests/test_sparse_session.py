"""Sparse decoding end to end: answers, measured budgets, and selectors that misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from galoop.domains.sparse_decoding import session as session_module
from galoop.domains.sparse_decoding.artifacts import list_artifacts, materialise
from galoop.domains.sparse_decoding.session import Session
from galoop.domains.text.decoding.capture import prefill
from galoop.domains.text.model_session import Options
from galoop.isolation import Limits
from galoop.methods.oracle_topk import OracleTopK
from galoop.methods.pqcache import PQCache
from galoop.methods.quest import Quest
from galoop.methods.sliding_window import SlidingWindow
from galoop.methods.sparse_attention import sparse_attention
from galoop.types import Candidate, Example, Outcome, State
from presses import example, make_tiny_model, model_info, one_thread
from sparse_selectors import BAD, RECENT, selector

METHODS = {
    "oracle-topk": OracleTopK,
    "pqcache": PQCache,
    "quest": Quest,
    "sliding-window": SlidingWindow,
}
BUDGET = {"density": 0.25, "sparse_question": 1.0, "index_fraction": 2.0}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = make_tiny_model(tmp_path_factory.mktemp("model"))
    limits = Limits(seconds=30, memory_mb=1024, output_bytes=32 * 2**20)
    with one_thread(), Session(model_info(folder), Options(limits=limits)) as opened:
        yield opened


@pytest.fixture(scope="module")
def asked() -> list[Example]:
    return [example(i, 50 + 20 * i) for i in range(3)]


@contextmanager
def changed(session: Session, **options: Any) -> Iterator[None]:
    """Other options for a while."""
    before = session.options
    session.options = replace(before, **options)
    try:
        yield
    finally:
        session.options = before


def run(
    session: Session, candidate: Candidate | None, asked: list[Example], **budget: float
) -> list[Outcome]:
    system = (
        session.reference()
        if candidate is None
        else session.artifact(candidate, {**BUDGET, **budget}, name="tested")
    )
    return [outcome for rows in session.run([system], asked) for _, _, outcome in rows]


def by_transformers(
    session: Session, asked: Example, method: Any, sparse_question: bool
) -> tuple[str, Any]:
    """The same with the model's own calls, its own cache, and the method as attention function."""
    model = session.model
    context, question = session.tokenise(asked)
    captured = prefill(model, context)
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(captured.keys, captured.values, strict=True)):
        cache.update(keys[None], values[None], layer)
    n, q = len(context), len(question)
    start = n if sparse_question else n + q
    tokens: list[int] = []
    with (
        torch.inference_mode(),
        sparse_attention(model, method, context=n, sparse_from=start) as state,
    ):
        ids = question
        while True:
            logits = model(torch.tensor([ids]), past_key_values=cache).logits
            tokens.append(int(logits[0, -1].argmax()))
            stop = model.generation_config.eos_token_id
            if len(tokens) == asked.max_new_tokens or (len(tokens) > 1 and tokens[-1] == stop):
                break
            ids = tokens[-1:]
    return session.tokenizer.decode(tokens, skip_special_tokens=True), state.counts


def test_every_named_artifact_has_a_reference_here() -> None:
    assert set(list_artifacts()) == {*METHODS, "identity"}


@pytest.mark.parametrize("sparse_question", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_answers_and_densities_equal_those_of_the_attention_function(
    session: Session, asked: list[Example], name: str, sparse_question: bool
) -> None:
    found = run(session, materialise(name, BUDGET), asked, sparse_question=float(sparse_question))
    for outcome, one in zip(found, asked, strict=True):
        answer, counts = by_transformers(session, one, METHODS[name](0.25), sparse_question)
        assert outcome.state is State.SCORED, outcome.reason
        assert outcome.answer == answer
        assert outcome.measured["density"] == counts.density
        assert outcome.measured["kv_read_density"] == counts.kv_read_density
        assert 0.1 < counts.density <= 0.25
    if name == "sliding-window":  # far from harmless, so that equal answers mean something
        assert [o.answer for o in found] != [o.answer for o in run(session, None, asked)]


def test_identity_answers_as_the_reference_does(session: Session, asked: list[Example]) -> None:
    reference = run(session, None, asked)
    identity = run(session, materialise("identity", BUDGET), asked, density=1.0)
    assert [o.answer for o in identity] == [o.answer for o in reference]
    assert all(o.measured["density"] == 1.0 for o in identity)
    assert all(o.measured["index_bytes"] == 0.0 for o in identity)


def test_confined_and_in_this_process_a_named_artifact_chooses_the_same(
    session: Session, asked: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = materialise("pqcache", BUDGET)
    local = run(session, candidate, asked)
    assert not session.server_alive
    monkeypatch.setattr(session_module, "is_packaged", lambda candidate: False)
    confined = run(session, candidate, asked)
    assert session.server_alive

    def plain(outcome: Outcome) -> Any:
        return outcome.answer, {k: v for k, v in outcome.measured.items() if "seconds" not in k}

    assert [plain(o) for o in local] == [plain(o) for o in confined]


def test_a_changed_copy_of_a_named_artifact_is_confined(session: Session) -> None:
    candidate = materialise("pqcache", BUDGET)
    files = {**candidate.files, "selector.py": candidate.files["selector.py"] + "\n# mine\n"}
    assert session_module.is_packaged(candidate)
    assert not session_module.is_packaged(Candidate("artifact", files, ""))
    more = {**candidate.files, "galoop.py": "raise SystemExit"}
    assert not session_module.is_packaged(Candidate("artifact", more, ""))


def test_the_index_is_measured_and_capped(session: Session, asked: list[Example]) -> None:
    (oracle,) = run(session, materialise("oracle-topk", BUDGET), asked[:1])
    context, _ = session.tokenise(asked[0])
    keys = 3 * 2 * len(context) * 16 * 4  # layers, KV heads, tokens, dimensions, bytes
    assert oracle.measured["index_bytes"] == keys
    assert oracle.measured["index_fraction"] == 1.0
    (small,) = run(session, materialise("oracle-topk", BUDGET), asked[:1], index_fraction=0.9)
    assert small.state is State.INVALID
    assert f"an index of {keys} bytes, {int(0.9 * keys)} are allowed" in small.reason
    own = selector(index="return {'a': torch.ones(2, 5, dtype=torch.uint8)}")
    (tiny,) = run(session, own, asked[:1])
    assert tiny.measured["index_bytes"] == 3 * 10


def test_an_honest_selector_of_numbers_counts_its_own_row_once(
    session: Session, asked: list[Example]
) -> None:
    """It names as many entries as a row may have, the row itself among them."""
    found = run(session, selector(), asked)
    assert [o.state for o in found] == [State.SCORED] * 3
    same = run(session, materialise("sliding-window", BUDGET), asked)
    assert [o.measured["density"] for o in found] == [o.measured["density"] for o in same]
    # One that does not name the row itself may name one less.
    late = selector(RECENT.replace("- 1 - torch", "- 2 - torch"))
    (over,) = run(session, late, asked[:1])
    assert over.state is State.INVALID
    assert "over budget" in over.reason


def test_what_the_index_does_not_hold_is_not_known_when_choosing(
    session: Session, asked: list[Example]
) -> None:
    """The process that chooses is another one than that which was given the context's keys."""
    peeks = selector(
        top="kept = []",
        index="kept.append(keys.clone()); return {}",
        select="assert not kept, 'I know the keys'\n" + RECENT,
    )
    assert [o.state for o in run(session, peeks, asked)] == [State.SCORED] * 3


def test_nothing_is_kept_from_one_example_to_the_next(
    session: Session, asked: list[Example]
) -> None:
    keeps = selector(
        select="self.calls = getattr(self, 'calls', 0) + 1\n"
        "if step.previous is None and step.layer == 0:\n"
        "    assert self.calls == 1\n" + RECENT
    )
    assert [o.state for o in run(session, keeps, asked)] == [State.SCORED] * 3


HYSTERESIS = """\
groups = step.groups
score = step.seen.float() * torch.sin(torch.arange(step.length) * (3.0 + step.visible[:, None]))
score = score.expand(1, step.queries.shape[1], -1, -1).clone()
if step.previous is not None:
    score[..., : step.previous.shape[-1]] += 2.0 * step.previous[:, :, None].float()
if step.below is not None:
    score = score + 0.5 * step.below.float()
from galoop.methods.selection import top, window
own = window(step, 0 * step.visible, 1 + 0 * step.visible)
score = score.masked_fill(~step.seen | own, float("-inf"))
return top(score, step.room(self.density) - 1) | own
"""


@pytest.fixture
def half_right(
    session: Session, asked: list[Example], monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[int]]:
    """Drafts that begin with none, one or two tokens of the reference's answer."""
    drafts = {}
    for i, one in enumerate(asked):
        context, question = session.tokenise(one)
        ids = torch.tensor([[*context, *question]])
        with torch.inference_mode():
            for _ in range(i):
                following = session.model(ids).logits[0, -1].argmax()
                ids = torch.cat([ids, following[None, None]], dim=1)
        drafts[one.key] = [*ids[0, len(context) + len(question) :].tolist(), 5, 6]
    monkeypatch.setattr(session, "draft", lambda example: drafts[example.key])
    return drafts


def test_a_draft_changes_no_answer_and_no_choice(session: Session, asked: list[Example]) -> None:
    """The gold answer never passes through the selector, which could learn it from the keys."""
    made = selector(HYSTERESIS)
    plain = run(session, made, asked)
    with changed(session, agreement=True):
        forced, reference = run(session, made, asked), run(session, None, asked)
    assert [o.answer for o in forced] == [o.answer for o in plain]
    assert all("gold_agreement" in o.measured for o in (*forced, *reference))
    assert not any("gold_agreement" in o.measured for o in plain)
    assert [o.measured["density"] for o in forced] == [o.measured["density"] for o in plain]


def test_agreement_is_the_common_beginning_and_the_rank_of_the_next_token(
    session: Session, asked: list[Example], half_right: dict[str, list[int]]
) -> None:
    """Against one dense pass over question and draft."""
    with changed(session, agreement=True):
        found = run(session, None, asked)
    seen = []
    for outcome, one in zip(found, asked, strict=True):
        context, question = session.tokenise(one)
        draft = half_right[one.key][: one.max_new_tokens - 1]
        ids = torch.tensor([[*context, *question, *draft[:-1]]])
        with torch.inference_mode():
            logits = session.model(ids).logits[0, len(context) + len(question) - 1 :]
        places = [
            sorted(range(len(row)), key=lambda t: -float(row[t])).index(token) + 1
            for row, token in zip(logits, draft, strict=True)
        ]
        same = next((i for i, place in enumerate(places) if place > 1), len(draft))
        total = same + (1 / places[same] if same < len(draft) else 0.0)
        seen.append(total / len(draft))
        assert outcome.measured["gold_agreement"] == pytest.approx(seen[-1])
    assert len(set(seen)) == 3


def test_which_part_is_sparse_and_every_budget_are_part_of_the_key(session: Session) -> None:
    candidate = materialise("pqcache", BUDGET)
    budgets: list[dict[str, float]] = [
        {},
        {"sparse_question": 0.0},
        {"density": 0.3},
        {"index_fraction": 1.0},
    ]
    keys = {session.artifact(candidate, {**BUDGET, **c}, name="a").key for c in budgets}
    assert len(keys) == 4
    assert session.reference().key not in keys


@pytest.mark.parametrize("name", BAD)
def test_a_selector_that_misbehaves_is_told_why(
    session: Session, asked: list[Example], name: str
) -> None:
    candidate, state, words = BAD[name]
    slow = name in ("hangs", "drips", "hangs in its index")
    limits = Limits(seconds=1.5) if slow else session.options.limits
    with changed(session, limits=limits):
        found = run(session, candidate, asked[:1])
    assert [o.state for o in found] == [state], found[0].reason
    assert words in found[0].reason
    assert found[0].score is None


def test_others_in_the_same_call_are_not_harmed(session: Session, asked: list[Example]) -> None:
    systems = [session.reference()]
    for name in ("attends to all", "leaves at once"):
        systems.append(session.artifact(BAD[name][0], BUDGET, name=name))
    systems.append(session.artifact(selector(), BUDGET, name="good"))
    states: dict[str, list[State]] = {s.name: [] for s in systems}
    for rows in session.run(systems, asked):
        for system, _, outcome in rows:
            states[system.name].append(outcome.state)
    assert states["reference"] == states["good"] == [State.SCORED] * 3
    assert set(states["attends to all"]) == {State.INVALID}
    assert set(states["leaves at once"]) == {State.FAILED}
