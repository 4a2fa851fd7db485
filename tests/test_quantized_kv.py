"""The domain of quantized caches: exact answers where nothing is lost, and codecs that cheat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from galoop.domains.quantized_kv.artifacts import list_artifacts, materialise
from galoop.domains.quantized_kv.session import QuantizedSession
from galoop.domains.text.model_session import Options
from galoop.errors import ArtifactError, UnknownNameError, UsageError
from galoop.isolation import Limits, available_tiers
from galoop.types import Candidate, Example, Outcome, State
from presses import examples, make_tiny_model, model_info, one_thread

BUDGET = {"bits": 8.3}
MANIFEST = (
    '[artifact]\nname = "candidate"\ndomain = "quantized-kv"\nentry = "codec.py:build_codec"\n'
    "[budget]\nbits = 8.3\n"
)
#: A codec that keeps eight bits of a float16 (sign, exponent, two bits) within the budget.
GOOD = """
import torch

class Codec:
    def encode(self, cache):
        {encode}
        return {{"keys": half(cache.keys), "values": half(cache.values)}}

    def decode(self, tensors, shape):
        {decode}
        return whole(tensors["keys"]), whole(tensors["values"])

def half(x):
    return (x.half().view(torch.int16) >> 8).to(torch.int8)

def whole(x):
    return (x.to(torch.int16) << 8).view(torch.float16)

def build_codec(bits):
    {build}
    return Codec()
"""


def codec(encode: str = "pass", decode: str = "pass", build: str = "pass") -> Candidate:
    source = GOOD.format(encode=encode, decode=decode, build=build)
    return Candidate("artifact", {"artifact.toml": MANIFEST, "codec.py": source})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[QuantizedSession]:
    limits = Limits(seconds=20, memory_mb=1024, output_bytes=32 * 2**20)
    options = Options(workers=2, tier=available_tiers()[0], limits=limits)
    with one_thread(), QuantizedSession(model_info(folder), options) as opened:
        yield opened


def run(
    session: QuantizedSession,
    candidates: dict[str, Candidate],
    asked: list[Example],
    budget: dict[str, float] = BUDGET,
) -> dict[str, list[Outcome]]:
    systems = [session.reference()]
    systems += [session.artifact(c, budget, name=name) for name, c in candidates.items()]
    found: dict[str, list[Outcome]] = {s.name: [] for s in systems}
    for rows in session.run(systems, asked):
        for system, _, outcome in rows:
            found[system.name].append(outcome)
    return found


def test_what_is_stored_whole_is_answered_as_the_model_answers(session: QuantizedSession) -> None:
    asked = examples(4, shortest=40, longest=90)
    identity = materialise("identity", {"bits": 64.0})
    found = run(session, {"identity": identity}, asked, {"bits": 64.0})
    assert [o.answer for o in found["identity"]] == [o.answer for o in found["reference"]]
    assert {o.state for o in found["identity"]} == {State.SCORED}
    for outcome in found["identity"]:
        assert outcome.measured["bits"] == pytest.approx(32, rel=0.01)  # the tiny model's float32
        assert outcome.measured["key_error"] == outcome.measured["value_error"] == 0.0


def test_more_bits_err_less_and_every_budget_is_kept(session: QuantizedSession) -> None:
    asked = examples(2, shortest=90, longest=91)
    errors = []
    for bits in (3.3, 4.3, 8.5, 17.0):
        budget = {"bits": bits}
        (outcome, *_) = run(session, {"kivi": materialise("kivi", budget)}, asked, budget)["kivi"]
        assert outcome.state is State.SCORED, outcome.reason
        assert outcome.measured["bits"] <= bits
        assert outcome.measured["bits"] > bits - (1.7 if bits < 17 else 17)  # 16 groups of 16
        errors.append(outcome.measured["key_error"] + outcome.measured["value_error"])
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 2e-3


BAD: dict[str, tuple[Candidate, State, str]] = {
    "over budget": (
        codec('return {"keys": cache.keys, "values": cache.values}'), State.INVALID, "over budget",
    ),
    "a little over": (
        codec('return {"keys": half(cache.keys), "values": half(cache.values), '
              '"more": torch.zeros(2000)}'), State.INVALID, "over budget",
    ),
    "hidden in names": (
        codec('return {str(i) + "x" * 50: torch.zeros(1) for i in range(4000)}'),
        State.INVALID, "over budget",
    ),
    "many names": (
        codec("return {str(i): torch.zeros(0) for i in range(4097)}"), State.INVALID, "4097",
    ),
    "long name": (codec('return {"x" * 65: torch.zeros(1)}'), State.INVALID, "65 characters"),
    "nothing": (codec("return {}"), State.INVALID, "no tensors"),
    "a list": (codec("return [cache.keys]"), State.INVALID, "not a dict of tensors"),
    "complex": (
        codec('return {"a": torch.zeros(2, dtype=torch.complex64)}'), State.INVALID, "complex64",
    ),
    "remembers": (
        # What encode leaves in its process is not there when another one decodes.
        codec("import builtins; builtins.kept = cache; return {'a': torch.zeros(1)}",
              "import builtins; return builtins.kept.keys, builtins.kept.values"),
        State.FAILED, "has no attribute 'kept'",
    ),
    "leaves a file": (
        codec("open('/tmp/kept', 'wb').write(b'x' * 100)"), State.FAILED, "Read-only",
    ),
    "wrong shape": (
        codec(decode="return torch.zeros(1, 2), torch.zeros(1, 2)"), State.INVALID, "of shape",
    ),
    "not finite": (
        codec(decode="n = whole(tensors['keys']) * float('nan'); return n, n"),
        State.INVALID, "NaN or infinite",
    ),
    "half a pair": (codec(decode="return whole(tensors['keys'])"), State.INVALID, "not a pair"),
    "raises in encode": (codec("1 / 0"), State.FAILED, "codec.py, line 6, in encode"),
    "raises in decode": (codec(decode="1 / 0"), State.FAILED, "ZeroDivisionError"),
    "exits": (codec(decode="raise SystemExit(0)"), State.FAILED, "SystemExit"),
    "dies": (codec(decode="import os; os._exit(3)"), State.FAILED, ""),
    "no decode": (codec(build="return object()"), State.INVALID, "has no encode"),
    "writes into what it is given": (codec(decode="tensors['keys'].fill_(1)"), State.SCORED, ""),
}  # fmt: skip


def test_misbehaviour_has_a_state_and_a_reason(session: QuantizedSession) -> None:
    asked = examples(2, shortest=40, longest=60)
    found = run(session, {"good": codec(), **{k: v[0] for k, v in BAD.items()}}, asked)
    assert {o.state for o in found["good"]} == {State.SCORED}, found["good"][0].reason
    for name, (_, state, reason) in BAD.items():
        outcome = found[name][0]
        if name == "leaves a file" and session.options.tier != available_tiers()[0].BUBBLEWRAP:
            continue
        assert outcome.state is state, (name, outcome.reason)
        assert reason in outcome.reason, (name, outcome.reason)
        if state is not State.SCORED:
            assert outcome.answer == ""


def test_a_hang_costs_its_limit_once(folder: Path) -> None:
    import time

    asleep = codec(decode="import time; time.sleep(100)")
    options = Options(workers=2, limits=Limits(seconds=1.5, memory_mb=1024))
    with one_thread(), QuantizedSession(model_info(folder), options) as opened:
        run(opened, {"good": codec()}, examples(1, shortest=40, longest=50))
        began = time.monotonic()
        found = run(opened, {"asleep": asleep}, examples(6, shortest=40, longest=60))
        assert time.monotonic() - began < 8
    assert {o.state for o in found["asleep"]} == {State.FAILED}


def test_the_order_of_examples_changes_nothing(session: QuantizedSession) -> None:
    """A codec that counts its calls, in each process: they are all the first one."""
    counting = codec(
        "import builtins; builtins.n = getattr(builtins, 'n', 0) + 1; assert builtins.n == 1",
        "import builtins; builtins.n = getattr(builtins, 'n', 0) + 1; assert builtins.n == 1",
    )
    found = run(session, {"counting": counting}, examples(5, shortest=40, longest=60))
    assert {o.state for o in found["counting"]} == {State.SCORED}, found["counting"][0].reason


def test_keys_depend_on_the_domain_and_the_budget(session: QuantizedSession) -> None:
    from galoop.domains.kv_compression.session import Session

    pressed = Session(session.info)
    assert pressed.reference().key != session.reference().key
    one = session.artifact(codec(), {"bits": 2.0}, name="a").key
    assert one != session.artifact(codec(), {"bits": 3.0}, name="a").key


# -- artifacts -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["identity", "kivi", "per-token"])
def test_named_artifacts_are_folders_that_read_back(name: str, tmp_path: Path) -> None:
    made = materialise(name, {"bits": 2.75})
    for path, text in made.files.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    assert materialise(str(tmp_path), {"bits": 1.0}).key == made.key
    assert name in list_artifacts()


def test_unknown_artifacts_and_budgets_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'kivi'"):
        materialise("kivy", {"bits": 2.0})
    with pytest.raises(ArtifactError, match="unknown budget 'density'"):
        materialise("kivi", {"bits": 2.0, "density": 0.1})
    with pytest.raises(ArtifactError, match="has no bits"):
        materialise("kivi", {})
    with pytest.raises(ArtifactError, match="bits is 65"):
        materialise("kivi", {"bits": 65.0})


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from galoop.domains.quantized_kv import artifacts

    monkeypatch.setattr(artifacts, "_installed", lambda module: False)
    for name in ("hqq", "quanto"):
        with pytest.raises(UsageError, match=r"pip install 'galoop\[quantized\]'"):
            materialise(name, {"bits": 2.75})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The domain is known, also where galoop was installed before it had it."""
    from fake_domain import Point
    from galoop import plugins
    from galoop.domains.quantized_kv.domain import QuantizedKV

    if "quantized-kv" not in plugins.names("domains"):
        real, more = plugins._points, [Point("quantized-kv", QuantizedKV)]
        monkeypatch.setattr(
            plugins, "_points", lambda group: [*real(group), *(more if group == "domains" else [])]
        )


@pytest.mark.usefixtures("installed")
def test_the_domain_tells_proposers_its_own_name_budget_and_rules(folder: Path) -> None:
    from galoop.config import load
    from galoop.domains.quantized_kv.domain import QuantizedKV

    config = load(None, {"domain": "quantized-kv", "model.name": str(folder)})
    opened = QuantizedKV().open(config, lambda line: None)
    try:
        task = opened.artifact_task()
        assert (task.domain, dict(task.budget)) == ("quantized-kv", {"bits": 2.75})
        assert "encode(cache)" in task.contract
        assert opened.probe_task(()).domain == "quantized-kv"
        assert opened.start_artifact().key == materialise("kivi", {"bits": 2.75}).key
        assert opened.named_artifact("identity").budget == {"bits": 64.0}
        assert opened.named_artifact("kivi", {"bits": 4.0}).budget == {"bits": 4.0}
        assert set(opened.describe()["versions"]) == {"galoop", "gepa", "torch", "transformers"}
    finally:
        opened.close()


@pytest.mark.usefixtures("installed")
def test_the_experiment_file_takes_bits(tmp_path: Path) -> None:
    from galoop.config import load
    from galoop.errors import ConfigError

    config = load(None, {"domain": "quantized-kv"})
    assert config.artifact.budget == {"bits": 2.75}
    assert config.artifact.start == "kivi"
    text = config.to_toml()
    assert "bits = 2.75" in text
    assert "compression_ratio" not in text
    (tmp_path / "e.toml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "e.toml") == config
    with pytest.raises(ConfigError, match="the domain quantized-kv takes bits"):
        load(None, {"domain": "quantized-kv", "artifact.compression_ratio": 0.5})
