"""Artifacts: names, press expressions, folders, the loader."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from pathlib import Path

import pytest
import torch

from galoop.domains.kv_compression.artifacts import (
    ArtifactRuntimeError,
    check_model,
    describe_failure,
    list_artifacts,
    load_press,
    materialise,
    parse_spec,
)
from galoop.errors import ArtifactError, GaloopError, ModelError, UnknownNameError
from galoop.types import State

BUDGET = {"compression_ratio": 0.75}
TOML = '[artifact]\nname = "x"\n[budget]\ncompression_ratio = 0.5\n'
PRESS = """
from kvpress import KnormPress

def build_press(compression_ratio):
    return KnormPress(compression_ratio)
"""


def folder(**extra: str) -> dict[str, str]:
    files = {"artifact.toml": TOML, "press.py": PRESS}
    files.update({f"{name}.py": text for name, text in extra.items()})
    return files


@pytest.mark.parametrize("name", sorted(list_artifacts()))
def test_named_artifacts_load_with_their_budget(name: str) -> None:
    candidate = materialise(name, BUDGET)
    press, spec = load_press(candidate.files)
    assert spec.name == name
    expected = 0.0 if name == "identity" else 0.75
    assert spec.budget["compression_ratio"] == press.compression_ratio == expected
    assert materialise(name, BUDGET).key == candidate.key


@pytest.mark.parametrize("name", ["compactor", "keydiff", "snapkv", "expected-attention", "knorm"])
def test_packaged_source_scores_as_the_installed_press(name: str) -> None:
    import kvpress

    candidate = materialise(name, BUDGET)
    source = candidate.files["press.py"]
    press, spec = load_press(candidate.files)
    original = getattr(kvpress, type(press).__name__)
    assert type(press) is not original  # the copy, which a generator may rewrite
    assert "SPDX-License-Identifier: Apache-2.0" in source.split("import")[0]
    assert "kvpress 0.5" in spec.provenance["origin"]
    torch.manual_seed(0)
    module, hidden, keys, values, kwargs = _layer()
    torch.manual_seed(1)
    ours = press.score(module, hidden, keys, values, None, kwargs)
    torch.manual_seed(1)
    theirs = original(compression_ratio=0.75).score(module, hidden, keys, values, None, kwargs)
    assert torch.equal(ours, theirs)


def _layer():  # type: ignore[no-untyped-def]
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    model = LlamaForCausalLM(config).eval()
    attention = model.model.layers[0].self_attn
    attention.rotary_emb = model.model.rotary_emb
    size = 90
    kwargs = {
        "position_embeddings": model.model.rotary_emb(torch.zeros(1), torch.arange(size)[None])
    }
    shape = (1, 2, size, 8)
    return attention, torch.randn(1, size, 32), torch.randn(shape), torch.randn(shape), kwargs


def test_expression_builds_what_python_would_build() -> None:
    from kvpress import AdaKVPress, CompactorPress

    candidate = materialise("AdaKVPress(CompactorPress(sink_size_start=4))", BUDGET)
    press, _ = load_press(candidate.files)
    assert press == AdaKVPress(CompactorPress(compression_ratio=0.75, sink_size_start=4))


@pytest.mark.parametrize(
    ("text", "ratio"), [("KnormPress(compression_ratio=0.5)", 0.5), ("KnormPress(0.25)", 0.25)]
)
def test_expression_that_states_its_ratio_keeps_it(text: str, ratio: float) -> None:
    press, _ = load_press(materialise(text, BUDGET).files)
    assert press.compression_ratio == ratio


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("compacter", UnknownNameError, "did you mean 'compactor'"),
        ("KnormPres()", UnknownNameError, "did you mean 'KnormPress'"),
        ("AdaKVPress(KnormPress)", UnknownNameError, "KnormPress()"),
        ("KnormPress(ratio=1)", ArtifactError, "no argument 'ratio'"),
        ("KnormPress(compression_ratio=2)", ArtifactError, "between 0 and 1"),
        ("KnormPress(1, 2)", ArtifactError, "at most 1"),
        ("AdaKVPress(3)", ArtifactError, "requires a ScorerPress"),
        ("KnormPress(**{})", ArtifactError, "'**'"),
        ("KnormPress(", ArtifactError, "does not parse"),
        ("KnormPress().score", ArtifactError, "not a call"),
        ("KnormPress(compression_ratio=1/2)", ArtifactError, "not allowed"),
        ("KnormPress([x for x in ()])", ArtifactError, "not allowed"),
        ("__import__('os').system('true')", ArtifactError, "may not be called"),
        ("KnormPress(__import__('os'))", UnknownNameError, "no press '__import__'"),
        ("ScorerPress()", UnknownNameError, "no press 'ScorerPress'"),
        ("ThinKPress()", ArtifactError, "takes no compression ratio"),
        ("ComposedPress([KnormPress()])", ArtifactError, "takes no compression ratio"),
        ("./no/such/folder", ArtifactError, "no artifact folder"),
    ],
)
def test_bad_names_and_expressions(text: str, error: type[GaloopError], words: str) -> None:
    with pytest.raises(error) as caught:
        materialise(text, BUDGET)
    assert words in str(caught.value)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "budget", [{}, {"compression_ratio": 1.0}, {"compression_ratio": -0.1}, {"ratio": 0.5}]
)
def test_bad_budget(budget: dict[str, float]) -> None:
    with pytest.raises(ArtifactError):
        materialise("knorm", budget)


def test_fastkvzip_names_the_models_that_have_gates() -> None:
    files = materialise("fastkvzip", BUDGET).files
    with pytest.raises(ModelError, match="Qwen3-8B"):
        check_model(files, "HuggingFaceTB/SmolLM2-135M-Instruct")
    check_model(files, "Qwen/Qwen3-8B")
    check_model(materialise("kvzip", BUDGET).files, "HuggingFaceTB/SmolLM2-135M-Instruct")


def test_folder_round_trip(tmp_path: Path) -> None:
    candidate = materialise("compactor", BUDGET)
    for name, text in candidate.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"\xff\xfe")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert materialise(str(tmp_path), BUDGET).key == candidate.key


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[artifact", "not valid TOML"),
        ("[artifact]\nnam = 'x'\n", "did you mean 'name'"),
        ("[artefact]\n", "did you mean 'artifact'"),
        ("artifact = 3\n", "must be a table"),
        ("[artifact]\n[budget]\ncompression_ratio = 0.5\n", "has no 'name'"),
        ("[artifact]\nname = 3\n", "must be a text"),
        (TOML.replace("0.5", "1.5"), "compression_ratio is 1.5"),
        (TOML.replace("0.5", "true"), "compression_ratio is True"),
        (TOML.replace("0.5", "nan"), "compression_ratio is nan"),
        ("[artifact]\nname = 'x'\n", "has no 'compression_ratio'"),
        (TOML.replace('"x"', '"x"\nmode = "fast"'), "mode is 'fast'"),
        (TOML.replace('"x"', '"x"\ndomain = "video"'), "domain is 'video'"),
        (TOML.replace('"x"', '"x"\nentry = "press.py"'), "entry is 'press.py'"),
        (TOML.replace('"x"', '"x"\nentry = "other.py:f"'), "'other.py' is not in the artifact"),
        (TOML.replace('"x"', '"x"\nentry = "../press.py:f"'), "plain relative path"),
        (TOML.replace('"x"', '"x"\nentry = "press.py:other"'), "does not define 'other'"),
    ],
)
def test_bad_manifest(toml: str, words: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        load_press({**folder(), "artifact.toml": toml})
    assert words in str(caught.value)


def test_manifest_round_trip_with_awkward_text() -> None:
    spec = parse_spec(materialise("knorm", BUDGET).files)
    awkward = 'a "quoted" \\ line\nnext\ttab \x01 ü ☃'
    changed = dataclasses.replace(spec, provenance={"note": awkward})
    files = {**folder(), "artifact.toml": changed.to_toml()}
    assert parse_spec(files) == changed


def test_folder_faults(tmp_path: Path) -> None:
    def materialised(name: str, *, toml: bool = True) -> Path:
        path = tmp_path / name
        path.mkdir()
        if toml:
            (path / "artifact.toml").write_text(TOML)
        (path / "press.py").write_text(PRESS)
        return path

    cases = {"no artifact.toml": materialised("a", toml=False)}
    cases["not UTF-8"] = materialised("b")
    (cases["not UTF-8"] / "notes.txt").write_bytes(b"\xff\xfe\xff")
    cases["too large"] = materialised("c")
    (cases["too large"] / "big.txt").write_text("x" * 300_000)
    cases["links outside"] = materialised("d")
    (tmp_path / "secret.txt").write_text("secret")
    (cases["links outside"] / "link.txt").symlink_to(tmp_path / "secret.txt")
    for words, path in cases.items():
        with pytest.raises(ArtifactError) as caught:
            materialise(str(path), BUDGET)
        assert words in str(caught.value)
    many = materialised("e")
    for i in range(40):
        (many / f"{i}.txt").write_text("x")
    with pytest.raises(ArtifactError, match="32 files"):
        materialise(str(many), BUDGET)


@pytest.mark.parametrize(
    "path", ["/etc/x.py", "../x.py", "a\\b.py", "a//b.py", "", "./a.py", "C:x"]
)
def test_paths_that_escape(path: str) -> None:
    with pytest.raises(ArtifactError, match="plain relative path"):
        load_press({**folder(), path: "x = 1"})


def test_syntax_error_is_static_and_names_the_line() -> None:
    files = folder(press="def build_press(compression_ratio):\n    return (\n")
    with pytest.raises(ArtifactError, match=r"press\.py, line 2"):
        load_press(files)


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        ("raise ValueError('boom')", State.FAILED, "press.py, line 2, in build_press"),
        ("import sys; sys.exit(3)", State.FAILED, "SystemExit: 3"),
        ("import no_such_module", State.FAILED, "ModuleNotFoundError"),
        ("return 3", State.INVALID, "returned int"),
    ],
)
def test_runtime_errors_are_distinct(body: str, state: State, words: str) -> None:
    with pytest.raises(ArtifactRuntimeError) as caught:
        load_press(folder(press=f"def build_press(compression_ratio):\n    {body}\n"))
    assert caught.value.state is state
    assert words in str(caught.value)
    assert not isinstance(caught.value, ArtifactError)


MULTI = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import ClassVar
import helper
import lib.deep
from lib import deep as again
from lib.deep import depth
from .helper import VALUE
from kvpress import KnormPress

@dataclass
class Mine(KnormPress):
    kind: ClassVar[str] = "mine"
    extra: list[int] = field(default_factory=list)

    def score(self, *args):
        import late  # imported when it runs
        return late.answer(), helper.VALUE

def build_press(compression_ratio: float):
    assert again is lib.deep and depth() == 2 and VALUE == helper.VALUE == 7
    return Mine(compression_ratio)
"""


def multi_file() -> dict[str, str]:
    return {
        **folder(press=MULTI, helper="VALUE = 7\n"),
        "late.py": "from helper import VALUE\ndef answer(): return VALUE * 6\n",
        "lib/__init__.py": "",
        "lib/sibling.py": "TWO = 2\n",
        "lib/deep.py": (
            "from . import sibling\nfrom ..helper import VALUE\ndef depth(): return sibling.TWO\n"
        ),
    }


def test_files_import_each_other_and_leave_nothing_behind() -> None:
    modules, finders, paths = set(sys.modules), list(sys.meta_path), list(sys.path)
    press, _ = load_press(multi_file())
    assert press.score() == (42, 7)
    assert press.extra == []
    left = {m for m in set(sys.modules) - modules if "artifact" in m or m in ("helper", "late")}
    assert not left
    assert (sys.meta_path, sys.path) == (finders, paths)


def test_two_artifacts_do_not_share_modules() -> None:
    first, second = multi_file(), multi_file()
    second["helper.py"] = "VALUE = 7\nCOUNT = 1\n"
    one, _ = load_press(first)
    two, _ = load_press(second)
    assert type(one) is not type(two)
    assert one.score() == two.score() == (42, 7)


def test_traceback_shows_the_artifact_s_line() -> None:
    source = PRESS.replace("KnormPress(compression_ratio)", "Bad()") + (
        "class Bad(KnormPress):\n    def score(self, *a):\n        return 1 / 0  # here\n"
    )
    press, _ = load_press(folder(press=source))
    with pytest.raises(ZeroDivisionError) as caught:
        press.score()
    text = "".join(traceback.format_exception(caught.value))
    assert "return 1 / 0  # here" in text
    assert 'File "artifact:x@' in text
    said = describe_failure(caught.value)
    assert said.startswith("press.py, line 8, in score")
    assert "ZeroDivisionError" in said


def test_ratio_can_be_overridden() -> None:
    press, spec = load_press(folder(), compression_ratio=0.25)
    assert (press.compression_ratio, spec.budget["compression_ratio"]) == (0.25, 0.5)
