"""The experiment file: what is refused and how, round trips, the manifest."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import ClassVar

import pytest

from fake_domain import Point
from galoop import plugins
from galoop.config import ExperimentConfig, budget_names, knobs, load, sections
from galoop.errors import ConfigError, ExitCode, UnknownNameError


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str, **overrides: object) -> list[str]:
    """The lines of the error that a file raises."""
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    with pytest.raises(ConfigError) as info:
        load(write(folder, text), given)
    assert info.value.exit_code == ExitCode.USAGE
    return str(info.value).splitlines()


def test_every_key_of_the_written_file_is_every_knob(tmp_path: Path) -> None:
    text = load(None).to_toml()
    active = tomllib.loads(text)
    # An unset cap stands as a comment: uncommenting it must name a real key.
    shown = {key for key, value in active.items() if not isinstance(value, dict)}
    shown |= {f"{table}.{key}" for table in sections() for key in active[table]}
    foreign = {f"artifact.{key}" for key in budget_names()} - {"artifact.compression_ratio"}
    unset = {knob.key for knob in knobs() if knob.default is None and not knob.budget}
    assert shown == {knob.key for knob in knobs()} - unset - foreign
    for key in unset:
        assert f"# {key.split('.')[1]} =" in text


def test_every_knob_has_a_description_and_says_what_is_allowed() -> None:
    for knob in knobs():
        assert knob.description.endswith("."), knob.key
        assert knob.allowed, knob.key


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"seed": 3, "discriminator.max_dollars": 0.5, "generator.max_evaluations": 7},
        {"artifact.start": 'AdaKVPress(CompactorPress()) # "quoted" \\ and\ttabbed é'},
        {"gate.suites": (), "gate.components": ("vt", "cwe"), "isolation.require": True},
        {"evaluation.exact_margin": 1e-7, "criterion.tau": 0},
    ],
)
def test_written_file_reads_back_as_equal(tmp_path: Path, overrides: dict[str, object]) -> None:
    config = load(None, overrides)
    assert load(write(tmp_path, config.to_toml())) == config


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "seed = 1\n[criterion]\ntau = 0.2\n")
    config = load(path, {"criterion.tau": 0.4, "criterion.tau0": 0.9})
    assert (config.seed, config.criterion.tau, config.criterion.tau0) == (1, 0.4, 0.9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nmae = 'x'", "unknown key nmae; did you mean name?"),
        (
            "[discriminator]\nmax_candidate = 5",
            "unknown key discriminator.max_candidate; did you mean discriminator.max_candidates?",
        ),
        (
            "[discriminator]\ntau0 = 0.5",
            "unknown key discriminator.tau0; it belongs in another table: criterion.tau0",
        ),
        ("[descriminator]\nlength = 300", "did you mean discriminator?"),
        ("seed = -1", "seed = -1: not allowed; give a whole number at least 0"),
        ("seed = '7'", 'seed = "7": not allowed; give a whole number'),
        ("seed = 1.5", "seed = 1.5: not allowed; give a whole number"),
        ("seed = true", "seed = true: not allowed; give a whole number"),
        ("[criterion]\ntau = 1.01", "criterion.tau = 1.01: not allowed; give a number at least 0"),
        ("[criterion]\ntau = nan", "criterion.tau = NaN: not allowed"),
        ("[artifact]\ncompression_ratio = 1.0", "give a number at least 0 and below 1"),
        (
            "[artifact]\nbits = 2",
            "artifact.bits is not a budget of this domain; the domain kv-compression takes "
            "compression_ratio",
        ),
        ("[model]\ndtype = 'int8'", "give one of auto, bfloat16, float32, float16"),
        ("[gate]\nsuites = 'ruler'", 'gate.suites = "ruler": not allowed; give a list of names'),
        ("[generator]\nmax_seconds = 0", "above 0, or leave it out for no cap"),
        ("[isolation]\nrequire = 1", "isolation.require = 1: not allowed; give true or false"),
        ("name = 'a/b'", "not allowed; give text that matches"),
        ("loop = 3", "[loop] must be a table, not 3"),
        ("seed = ", "not valid TOML"),
    ],
)
def test_bad_input_names_file_key_value_and_remedy(
    tmp_path: Path, text: str, expected: str
) -> None:
    (line,) = refused(tmp_path, text)
    assert line.startswith(str(tmp_path / "experiment.toml"))
    assert expected in line


def test_all_errors_are_listed_one_line_each(tmp_path: Path) -> None:
    lines = refused(
        tmp_path, "seed = -1\nextra = 1\n[criterion]\ntau = 'x'\n", discriminator__length=3
    )
    assert len(lines) == 4
    assert sum("experiment.toml" in line for line in lines) == 3
    (flag,) = [line for line in lines if "experiment.toml" not in line]
    assert flag.startswith("flag --discriminator.length: discriminator.length = 3: not allowed")


def test_a_wrong_override_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown key criterion\.tua; did you mean criterion\.tau"
    ):
        load(None, {"criterion.tua": 0.1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gate]\nsuites = ['rulr']", "unknown suite 'rulr'; did you mean ruler?"),
        ("domain = 'kv-compresion'", "did you mean kv-compression?"),
        ("[generator]\nproposer = 'oracle'", "unknown proposer 'oracle'; there are: agent, files"),
        ("[discriminator]\nsearch = 'gpea'", "unknown search 'gpea'; did you mean gepa?"),
    ],
)
def test_unknown_names_are_refused_with_what_there_is(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(UnknownNameError, match=r"experiment\.toml") as info:
        load(write(tmp_path, text))
    assert expected in str(info.value)
    assert info.value.exit_code == ExitCode.USAGE


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file.*gal init"):
        load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "binary.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"seed_probe.*no such file"):
        load(None, {"discriminator.seed_probe": str(tmp_path / "none.py")})


def test_a_relative_path_is_taken_from_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    config = load(write(tmp_path, "[discriminator]\nseed_probe = 'mine.py'\n"))
    assert Path(config.discriminator.seed_probe) == tmp_path / "mine.py"


def test_a_users_data_count_by_their_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "book.txt").write_bytes(b"\xff text")
    a, b = (load(None, {"data.text": str(tmp_path / name)}).manifest() for name in "ab")
    assert a["data.text"] == b["data.text"]
    assert a["data.text"].startswith("content:")
    (tmp_path / "b" / "deep" / "book.txt").write_bytes(b"\xff Text")
    assert load(None, {"data.text": str(tmp_path / "b")}).manifest() != a
    with pytest.raises(ConfigError, match=r"data\.leval = .*nowhere.*no such file"):
        load(None, {"data.leval": str(tmp_path / "nowhere")})
    config = load(write(tmp_path, "[data]\nessays = 'a'\n"))
    assert Path(config.data.essays) == tmp_path / "a"


def test_manifest_holds_everything_but_the_free_knobs() -> None:
    keys = set(load(None).manifest())
    free = {knob.key for knob in knobs() if knob.free}
    own = set(plugins.load("domains", load(None).domain).budget_keys)
    budgets = [set(plugins.load("domains", n).budget_keys) for n in plugins.names("domains")]
    free |= {f"artifact.{key}" for key in set().union(*budgets) - own}  # other domains'
    # A user's data take part where they are given, by their content.
    data = {knob.key for knob in knobs() if knob.section == "data"}
    assert keys == {"schema"} | {knob.key for knob in knobs()} - free - data
    assert {"discriminator.max_candidates", "loop.rounds", "run_dir"} <= free
    assert not {"seed", "criterion.tau", "model.threads", "evaluation.repeats"} & free


def test_manifest_changes_with_what_shapes_results_only() -> None:
    base = load(None).manifest()
    assert load(None, {"loop.rounds": 9, "generator.max_seconds": 5.0}).manifest() == base
    changed = load(None, {"criterion.tau": 0.31}).manifest()
    assert [k for k in base if base[k] != changed[k]] == ["criterion.tau"]


def test_manifest_counts_files_by_content(tmp_path: Path) -> None:
    manifests = []
    for folder, text in (("a", "x = 1\n"), ("b", "x = 1\n"), ("c", "x = 2\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "artifact.toml").write_text("[artifact]\n")
        (tmp_path / folder / "press.py").write_text(text)
        path = str(tmp_path / folder)
        probe = str(tmp_path / folder / "press.py")
        manifests.append(
            load(None, {"artifact.start": path, "discriminator.seed_probe": probe}).manifest()
        )
    assert manifests[0] == manifests[1]
    differing = {k for k in manifests[0] if manifests[0][k] != manifests[2][k]}
    assert differing == {"artifact.start", "discriminator.seed_probe"}


def test_run_path() -> None:
    assert load(None, {"name": "abc"}).run_path == Path("runs/abc")
    assert load(None, {"run_dir": "here"}).run_path == Path("here")


def test_config_cannot_be_changed() -> None:
    config = ExperimentConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]


def test_the_examples_load() -> None:
    examples = sorted((Path(__file__).parent.parent / "examples").glob("*.toml"))
    assert {e.stem for e in examples} >= {"demo", "longer"}
    for example in examples:
        config = load(example)
        assert set(config.artifact.budget) == set(
            plugins.load("domains", config.domain).budget_keys
        )


def test_a_flag_of_another_domain_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^flag --artifact\.density: .*takes compr"):
        load(None, {"artifact.density": 0.02})


def test_a_domain_says_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its budget, its default, its settings; and a manifest holds the domain's budget only."""
    real = plugins._points

    class Sparse:
        """Reads a few entries."""

        name = "sparse"
        budget_keys: ClassVar = {"density": 0.02}
        defaults: ClassVar = {"artifact.start": "quest", "gate.length": 512, "seed": 9}

    point = Point("sparse", Sparse)
    monkeypatch.setattr(
        plugins, "_points", lambda group: [*real(group), *([point] if group == "domains" else [])]
    )
    config = load(None, {"domain": "sparse", "gate.length": 300})
    assert config.artifact.budget == {"density": 0.02}
    assert (config.artifact.start, config.gate.length, config.seed) == ("quest", 300, 9)
    assert load(None, {"domain": "sparse", "artifact.density": 0.5}).artifact.density == 0.5
    assert config.manifest()["artifact.density"] == 0.02
    assert not {"artifact.bits", "artifact.compression_ratio"} & set(config.manifest())
    with pytest.raises(ConfigError, match="the domain sparse takes density"):
        load(None, {"domain": "sparse", "artifact.compression_ratio": 0.5})


def test_the_manifest_of_a_compression_has_the_keys_it_had_before_other_domains() -> None:
    manifest = ExperimentConfig().manifest()
    assert {k: v for k, v in manifest.items() if k.startswith("artifact.")} == {
        "artifact.start": "compactor",
        "artifact.compression_ratio": 0.75,
    }
