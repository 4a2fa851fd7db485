"""Selector artifacts by name and folder, and what the experiment file says of the domain."""

from __future__ import annotations

from pathlib import Path

import pytest

from galoop.config import ExperimentConfig, load
from galoop.domains.sparse_decoding.artifact_spec import RULES, parse_spec
from galoop.domains.sparse_decoding.artifacts import is_packaged, list_artifacts, materialise
from galoop.domains.sparse_decoding.domain import SparseDecoding
from galoop.domains.sparse_decoding.worker import load_selector
from galoop.errors import ArtifactError, ConfigError, UnknownNameError
from galoop.plugins import names
from sparse_selectors import selector

BUDGET = {"density": 0.02, "sparse_question": 1.0, "index_fraction": 2.0}


@pytest.mark.parametrize("name", list_artifacts())
def test_a_named_artifact_is_a_folder_that_loads_by_itself(name: str) -> None:
    candidate = materialise(name, BUDGET)
    assert set(candidate.files) == {"artifact.toml", "selector.py"}
    spec = parse_spec(candidate.files)
    assert spec.name == name
    assert spec.budget == {**BUDGET, "density": 1.0 if name == "identity" else 0.02}
    made = load_selector(candidate.files, 0.1)
    assert getattr(made, "density", 0.1) == 0.1
    assert is_packaged(candidate)
    again = materialise(name, BUDGET)
    assert again.key == candidate.key


def test_a_folder_keeps_its_manifest_and_is_nobody_elses(tmp_path: Path) -> None:
    made = selector()
    for path, text in made.files.items():
        (tmp_path / path).write_text(text)
    found = materialise(str(tmp_path), BUDGET)
    assert dict(found.files) == dict(made.files)
    assert not is_packaged(found)
    manifest = tmp_path / "artifact.toml"
    manifest.write_text(manifest.read_text().replace("sparse-decoding", "kv-compression"))
    with pytest.raises(ArtifactError, match="sparse-decoding"):
        materialise(str(tmp_path), BUDGET)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({}, "density"),
        ({"density": 0.0}, "density"),
        ({"density": 1.5}, "density"),
        ({"density": 0.1, "sparse_question": 2.0}, "sparse_question"),
        ({"density": 0.1, "index_fraction": -1.0}, "index_fraction"),
        ({"density": 0.1, "compression_ratio": 0.5}, "compression_ratio"),
    ],
)
def test_a_budget_that_is_none_is_refused(budget: dict[str, float], words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        materialise("pqcache", budget)


def test_an_unknown_name_says_what_was_meant() -> None:
    with pytest.raises(UnknownNameError, match="pqcache"):
        materialise("pq-cache", BUDGET)


def test_density_1_is_a_budget() -> None:
    assert parse_spec(materialise("quest", {"density": 1.0}).files).budget["density"] == 1.0
    assert set(SparseDecoding.budget_keys) == set(RULES.budget)


@pytest.mark.skipif(
    "sparse-decoding" not in names("domains"), reason="the package is installed without the domain"
)
class TestConfiguration:
    """What the experiment file says, where the installed package declares the domain."""

    def test_the_domain_brings_its_defaults(self) -> None:
        config = ExperimentConfig.model_validate({"domain": "sparse-decoding"})
        assert config.artifact.start == "pqcache"
        assert config.artifact.budget == BUDGET

    def test_the_example_is_valid_and_a_flag_changes_which_part_is_sparse(self) -> None:
        example = Path(__file__).parent.parent / "examples" / "sparse.toml"
        assert load(example).artifact.budget["density"] == 0.02
        changed = load(example, {"artifact.sparse_question": False})
        assert changed.artifact.budget["sparse_question"] == 0.0
        assert changed.manifest() != load(example).manifest()

    def test_another_domain_knows_nothing_of_it(self) -> None:
        with pytest.raises(ConfigError, match="sparse_question"):
            load(None, {"artifact.sparse_question": True})
        assert "artifact.sparse_question" not in ExperimentConfig().manifest()
