"""The domain's session: twins, systems, answers, and artifacts that misbehave in isolation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galoop.config import ExperimentConfig
from galoop.domains.context_extension.answers import answer
from galoop.domains.context_extension.artifact_spec import DOMAIN, RULES
from galoop.domains.context_extension.artifacts import materialise
from galoop.domains.context_extension.domain import ContextExtension, ExtensionSession
from galoop.domains.context_extension.session import Session
from galoop.domains.text.artifact_spec import MANIFEST, ArtifactSpec
from galoop.domains.text.model_session import Options
from galoop.errors import UsageError
from galoop.isolation import Limits, Tier
from galoop.methods.dca import DualChunk
from galoop.types import Candidate, Example, Outcome, State
from presses import example, make_tiny_model, model_info, one_thread

torch = pytest.importorskip("torch")

WINDOW = 64
BUDGET = {"extension": 4.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), window=WINDOW)


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Session]:
    limits = Limits(seconds=3, memory_mb=1024, output_bytes=16 * 2**20)
    options = Options(limits=limits, agreement=True)
    with one_thread(), Session(model_info(folder, window=WINDOW), options) as opened:
        yield opened


def twins(n: int, words: int = 120) -> list[Example]:
    made = []
    for i in range(n):
        short = example(i + 50, 10, max_new_tokens=6)
        made.append(example(i, words + 9 * i, max_new_tokens=6, native=short))
    return made


def run(session: Session, systems: list[Any], asked: list[Example]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {s.name: [] for s in systems}
    for rows in session.run(systems, asked):
        for system, _, outcome in rows:
            found[system.name].append(outcome)
    return found


def named(session: Session, name: str, extension: float = 4.0) -> Any:
    candidate = materialise(name, {"extension": extension})
    extension = 1.0 if name == "identity" else extension
    return session.artifact(candidate, {"extension": extension}, name=name)


def program(body: str, name: str = "candidate", files: dict[str, str] | None = None) -> Candidate:
    source = (
        "import numpy as np\n"
        "from galoop.methods.positions import Band, Plan, identity_plan\n\n\n"
        f"def build_plan(shape, length):\n    i = np.arange(length)\n    {body}\n"
    )
    spec = ArtifactSpec(name, DOMAIN, RULES.entry, "auto", BUDGET)
    return Candidate("artifact", {MANIFEST: spec.to_toml(), "plan.py": source, **(files or {})})


@torch.no_grad()
def plain_greedy(model: Any, ids: list[int], most: int, stop: set[int]) -> list[int]:
    """Without cache and draft: the whole text anew for every token."""
    tokens: list[int] = []
    while len(tokens) < most and not (len(tokens) > 1 and tokens[-1] in stop):
        out = model(input_ids=torch.tensor([[*ids, *tokens]]), use_cache=False)
        tokens.append(int(out.logits[0, -1].argmax()))
    return tokens


# -- who answers what ------------------------------------------------------------------------


def test_the_reference_answers_the_twin_and_an_artifact_the_long_example(session: Session) -> None:
    asked = twins(3)
    systems = [session.reference(), named(session, "dca"), named(session, "identity")]
    found = run(session, systems, asked)
    for n, long in enumerate(asked):
        assert long.native is not None
        context, question = session.tokenise(long.native)
        expected = plain_greedy(session.model, context + question, 6, set(session._stop))
        text = session.tokenizer.decode(expected, skip_special_tokens=True)
        assert found["reference"][n].answer == found["identity"][n].answer == text
        context, question = session.tokenise(long)
        assert len(context) + len(question) > WINDOW
        with DualChunk().applied(session.model, 4 * WINDOW):
            expected = plain_greedy(session.model, context + question, 6, set(session._stop))
        text = session.tokenizer.decode(expected, skip_special_tokens=True)
        assert found["dca"][n].answer == text
        measured = found["dca"][n].measured
        assert measured["attended_fraction"] == 1.0
        assert measured["largest_distance"] == 3 * WINDOW // 4
        assert measured["unextended_score"] in (0.0, 1.0)
        assert 0 <= measured["gold_agreement"] <= 1


def test_unextended_is_the_model_as_it_is_on_the_long_example(session: Session) -> None:
    asked = twins(2)
    found = run(session, [named(session, "unextended"), named(session, "ntk")], asked)
    for n, long in enumerate(asked):
        context, question = session.tokenise(long)
        expected = plain_greedy(session.model, context + question, 6, set(session._stop))
        assert found["unextended"][n].answer == session.tokenizer.decode(
            expected, skip_special_tokens=True)  # fmt: skip
        outcome = found["unextended"][n]
        assert outcome.measured["unextended_score"] == outcome.score
        assert found["ntk"][n].measured["unextended_score"] == outcome.score


def test_an_example_without_a_twin_is_its_own(session: Session) -> None:
    short = example(7, 12, max_new_tokens=4)
    found = run(session, [session.reference(), named(session, "dca")], [short])
    assert found["reference"][0].answer == found["dca"][0].answer  # within one chunk: dense
    with pytest.raises(UsageError, match="native length"):
        run(session, [session.reference()], [example(8, 100)])


def test_an_example_beyond_the_extension_is_invalid(session: Session) -> None:
    found = run(session, [named(session, "dca", 2.0), named(session, "yarn")], twins(2, words=150))
    assert {o.state for o in found["dca"]} == {State.INVALID}
    assert "an extension of 2 reaches 128" in found["dca"][0].reason
    assert [o.state for o in found["yarn"]] == [State.SCORED] * 2


def test_a_plan_is_asked_for_once_for_each_number_of_windows(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = []
    fork = session.fork
    monkeypatch.setattr(session, "fork", lambda *a: forks.append(a) or fork(*a))
    candidate = program("return identity_plan(length)", "counted")
    system = session.artifact(candidate, BUDGET, name="counted")
    run(session, [system], [*twins(3, words=90), *twins(2, words=160)])
    lengths = set(session._plans[system.key])
    assert lengths <= {WINDOW * n for n in (2, 3, 4)}
    assert len(lengths) > 1
    assert len(forks) == 1
    run(session, [system], twins(1, words=90))
    assert len(forks) == 1


# -- answers ---------------------------------------------------------------------------------


def test_a_draft_never_changes_an_answer(session: Session) -> None:
    rng, model, stop = random.Random(0), session.model, frozenset(session._stop)
    for n in range(12):
        ids = [rng.randrange(5, 150) for _ in range(20 + n)]
        expected = plain_greedy(model, ids, 6, set(stop))
        drafts = [[], expected[:5], [*expected[:2], 9, 9], [3] * 5, [*expected[:4], 7]]
        for draft in drafts:
            found = answer(model, ids, draft, 6, stop)
            assert found.tokens == expected
            if draft:
                same = 0
                for at in range(len(draft)):
                    after = plain_greedy(model, ids + draft[:at], 1, set())
                    same += after[0] == draft[at]
                assert found.agreement == pytest.approx(same / len(draft))
            else:
                assert found.agreement is None


def test_an_answer_ends_at_the_stop_token_and_at_its_length(session: Session) -> None:
    ids = list(range(10, 40))
    free = plain_greedy(session.model, ids, 6, set())
    for at in range(1, 6):
        stop = frozenset({free[at]})
        first = next(n for n in range(1, 6) if free[n] == free[at])
        for draft in ([], free[:5]):
            assert answer(session.model, ids, draft, 6, stop).tokens == free[: first + 1]
    assert answer(session.model, ids, free, 1, frozenset()).tokens == free[:1]


# -- hostile plans -----------------------------------------------------------------------------

NAN = "return Plan([Band(i * 0, np.where(i == 9, np.nan, i), i)])"
ACAUSAL = "return Plan([Band(i + 3, i, i)])"
FAR = "return Plan([Band(i * 0, i + 10_000, i)])"
BACKWARDS = "return Plan([Band(i * 0, -i, i)])"
WINDOWED = "return Plan([Band(np.maximum(i - 9, 0), i, i)])"
HANG = "\n    while True: pass"
READS = "return open('/etc/passwd').read()"
NETWORK = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
FORKS = "import os; os.fork(); return identity_plan(length)"
MEMORY = "x = np.ones(2**34); return identity_plan(length)"
EXITS = "import os; os._exit(3)"


@pytest.mark.parametrize(
    ("body", "state", "reason"),
    [
        (NAN, State.INVALID, "not finite"),
        (ACAUSAL, State.INVALID, "later than its query"),
        (FAR, State.INVALID, "relative position is above 256"),
        (BACKWARDS, State.INVALID, "greater than its query's"),
        (WINDOWED, State.INVALID, "within reach of some head"),
        ("return 3", State.INVALID, "not a plan"),
        ("return [identity_plan(length)]", State.INVALID, "one for each of the 3 layers"),
        ("return identity_plan(length + 1)", State.INVALID, "shape"),
        ("return Plan([3])", State.INVALID, "not a Band"),
        ("return Plan(3)", State.INVALID, "not a plan"),
        ("return Plan([Band('a', i, i)])", State.INVALID, "not a plan"),
        ("raise KeyError('lost')", State.FAILED, "plan.py, line 7"),
        ("raise SystemExit(0)", State.FAILED, "SystemExit"),
        (HANG, State.FAILED, "3 s"),
        (READS, State.FAILED, ""),
        (NETWORK, State.FAILED, ""),
        (FORKS, State.FAILED, ""),
        (MEMORY, State.FAILED, "memory"),
        (EXITS, State.FAILED, ""),
    ],
)
def test_what_misbehaves_gets_a_state_and_a_reason(
    session: Session, body: str, state: State, reason: str
) -> None:
    bad = session.artifact(program(body, "bad"), BUDGET, name="bad")
    good = named(session, "dca")
    found = run(session, [bad, good], twins(2, words=80))
    assert {o.state for o in found["bad"]} == {state}
    assert reason.lower() in found["bad"][0].reason.lower()
    assert found["bad"][0].score is None
    assert [o.state for o in found["dca"]] == [State.SCORED] * 2


def test_a_worker_is_told_a_shape_and_a_length_and_nothing_else(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from galoop.isolation import Child

    sent: list[Any] = []
    call = Child.call
    monkeypatch.setattr(Child, "call", lambda self, r, *a: sent.append(r) or call(self, r, *a))
    system = session.artifact(program("return identity_plan(length)", "seen"), BUDGET, name="seen")
    run(session, [system], twins(1))
    assert [set(request) for request in sent] == [{"op"}, {"op", "seed", "shape", "length"}]
    assert set(sent[1]["shape"]) == {
        "layers", "heads", "kv_heads", "head_dim", "window", "frequencies", "extension"
    }  # fmt: skip
    assert sent[1]["seed"] == 0


# -- the domain --------------------------------------------------------------------------------

PROBE = """
def build(rng, length, count_tokens):
    words = ["alder", "beacon", "cellar", "dairy", "engine", "ferry"]
    code = str(rng.randrange(1000, 9999))
    parts = [f"The access code of the harbor is {code}."]
    while count_tokens(" ".join(parts)) < length - 8:
        parts.insert(rng.randrange(len(parts) + 1), f"The {rng.choice(words)} was quiet.")
    return {"context": " ".join(parts), "question": "\\nWhat is the access code?", "answer": code,
            "answer_prefix": "The access code of the harbor is"}
"""


@pytest.fixture(scope="module")
def domain() -> Iterator[ExtensionSession]:
    config = ExperimentConfig.model_validate(
        {
            "domain": DOMAIN,
            "model": {"name": "fast", "threads": 1},
            "discriminator": {"length": 160},
            "gate": {"length": 150, "max_new_tokens": 16},
            "evaluation": {"max_new_tokens": 10},
            "isolation": {"tier": str(Tier.PLAIN)},
        }
    )
    opened = ContextExtension().open(config, lambda line: None)
    yield opened
    opened.close()


def test_a_probe_is_built_at_both_lengths_from_the_same_seed(domain: ExtensionSession) -> None:
    result = domain.build_probe(PROBE, [3, 4, 5])
    assert result.rejected == ""
    for long in result.examples:
        assert long.native is not None
        assert domain._session.count_tokens(long.context) > 3.5 * 160
        assert 130 < domain._session.count_tokens(long.native.context) <= 160
        assert long.answers == long.native.answers  # drawn first, from the same rng
        assert long.seed == long.native.seed
    contract = domain.probe_task(()).contract
    assert "`length = 160`" in contract
    assert "`length = 640`" in contract


@pytest.mark.parametrize("at", [160, 640])
def test_a_rejection_says_at_which_length(domain: ExtensionSession, at: int) -> None:
    body = PROBE.replace("    code =", f"    if length == {at}: raise KeyError('no')\n    code =")
    result = domain.build_probe(body, [1, 2])
    assert result.examples == ()
    assert result.rejected.startswith(f"at length {at}: the probe raises")


def test_suites_come_as_twins(domain: ExtensionSession) -> None:
    examples = domain.suite_examples("ruler", "niah_multikey_2", 2, 0)
    for long in examples:
        assert long.native is not None
        assert long.max_new_tokens == long.native.max_new_tokens <= 16
        n = [domain._session.count_tokens(e.context) for e in (long.native, long)]
        assert n[0] <= 150 < 300 < n[1] <= 600


def test_the_experiment_file_knows_the_domain() -> None:
    config = ExperimentConfig.model_validate({"domain": DOMAIN})
    assert config.artifact.start == "dca"
    assert config.artifact.budget == {"extension": 4.0}


RECORDS = """
def build(rng, length, count_tokens):
    keys = rng.sample(["alder", "beacon", "cellar", "dairy", "engine", "ferry", "garden"], 4)
    values = [str(rng.randrange(1000, 99999)) for _ in keys]
    prose = ["The rain fell on the old road all morning.", "A dog slept beside the warm oven.",
             "Nobody asked about the broken window.", "They carried the boxes to the boat.",
             "The teacher closed the book and went home.", "It was cold, and the river was high."]
    parts = [f"The access code of the {k} is {v}." for k, v in zip(keys, values)]
    while count_tokens(" ".join(parts)) < length - 14:
        parts.append(rng.choice(prose))
    rng.shuffle(parts)
    return {"context": " ".join(parts), "answer": values[0],
            "question": f"\\nWhat is the access code of the {keys[0]}?",
            "answer_prefix": f"The access code of the {keys[0]} is"}
"""


@pytest.mark.slow
def test_the_fast_model_stretched(domain: ExtensionSession) -> None:
    """DCA answers at 4 x the window what the model answers within it; true positions do not."""
    result = domain.build_probe(RECORDS, range(12))
    assert result.rejected == ""
    names = ("dca", "self-extend", "unextended")
    systems = [domain.reference(), *(domain.named_artifact(name) for name in names)]
    totals = {s.name: 0.0 for s in systems}
    for rows in domain.run(systems, result.examples, 0):
        for system, _, outcome in rows:
            totals[system.name] += outcome.score or 0.0
    assert min(totals["reference"], totals["dca"], totals["self-extend"]) >= 9
    assert totals["unextended"] <= totals["dca"] - 4


# -- likelihoods ---------------------------------------------------------------------------------


def test_a_continuation_is_fed_and_its_likelihood_measured(session: Session) -> None:
    """Against the model's own loss, token by token, at both lengths."""
    (long,) = twins(1)
    assert long.native is not None
    gold = "badoki lumeno : 4 7"
    asked = [
        replace(e, answers=(gold,), scoring="likelihood", max_new_tokens=4)
        for e in (long, long.native)
    ]
    example_ = replace(asked[0], native=asked[1])
    found = run(session, [session.reference(), named(session, "dca")], [example_])
    ids = session.tokenizer.encode(gold, add_special_tokens=False)[:4]
    for name, e, method in (
        ("reference", asked[1], nullcontext()),
        ("dca", asked[0], DualChunk().applied(session.model, 4 * WINDOW)),
    ):
        context, question = session.tokenise(e)
        losses = []
        with method, torch.no_grad():
            for n, token in enumerate(ids):
                before = torch.tensor([[*context, *question, *ids[:n]]])
                logits = session.model(input_ids=before, use_cache=False).logits[0, -1]
                losses.append(-float(logits.log_softmax(-1)[token]))
        (outcome,) = found[name]
        assert outcome.measured["nll"] == pytest.approx(sum(losses) / len(ids), rel=1e-4)
        assert outcome.measured["scored_tokens"] == len(ids) == 4
        assert outcome.score == pytest.approx(np.exp(-outcome.measured["nll"]))
