"""The experiment file: pydantic models of ``experiment.toml``, its loader and its writer.

Every knob is declared once, here. The flags of ``gal loop``, ``gal discover`` and ``gal improve``,
the commented file of ``gal init`` and the reference table of the documentation are generated from
these models, so that none of them can fall behind.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from galoop._seats import AgentConfig, FilesConfig, LanguageModelConfig, RecordedConfig
from galoop._sections import (
    FREE,
    AdmissionConfig,
    ArtifactConfig,
    CriterionConfig,
    DataConfig,
    DiscriminatorConfig,
    EvaluationConfig,
    GateConfig,
    GeneratorConfig,
    IslandsConfig,
    IsolationConfig,
    LoopConfig,
    ModelConfig,
    Section,
    budget_names,
)
from galoop.errors import ConfigError, UnknownNameError
from galoop.hashing import content_hash, files_hash, tree_hash
from galoop.plugins import Group

__all__ = [
    "AdmissionConfig",
    "AgentConfig",
    "ArtifactConfig",
    "CriterionConfig",
    "DataConfig",
    "DiscriminatorConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "FilesConfig",
    "GateConfig",
    "GeneratorConfig",
    "IslandsConfig",
    "IsolationConfig",
    "Knob",
    "LanguageModelConfig",
    "LoopConfig",
    "ModelConfig",
    "RecordedConfig",
    "budget_names",
    "knobs",
    "load",
    "sections",
]

MANIFEST_SCHEMA = 1

_GROUP_OF: dict[str, Group] = {
    "domain": "domains",
    "discriminator.search": "searches",
    "discriminator.proposer": "proposers",
    "generator.search": "searches",
    "generator.proposer": "proposers",
    "islands.engine": "searches",
    "gate.suites": "suites",
}


class ExperimentConfig(Section):
    """A whole experiment."""

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the experiment.",
        json_schema_extra=FREE,
    )
    seed: int = Field(0, ge=0, description="Every random choice follows from it.")
    domain: str = Field("kv-compression", min_length=1, description="Domain (`gal list domains`).")
    run_dir: str = Field(
        "",
        description="Run folder, relative to where `gal` is started; empty: `runs/<name>`.",
        json_schema_extra=FREE,
    )
    model: ModelConfig = Field(default_factory=ModelConfig)
    artifact: ArtifactConfig = Field(default_factory=ArtifactConfig)
    criterion: CriterionConfig = Field(default_factory=CriterionConfig)
    discriminator: DiscriminatorConfig = Field(default_factory=DiscriminatorConfig)
    admission: AdmissionConfig = Field(default_factory=AdmissionConfig)
    generator: GeneratorConfig = Field(default_factory=GeneratorConfig)
    gate: GateConfig = Field(default_factory=GateConfig)
    islands: IslandsConfig = Field(default_factory=IslandsConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    loop: LoopConfig = Field(default_factory=LoopConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    isolation: IsolationConfig = Field(default_factory=IsolationConfig)
    language_model: LanguageModelConfig = Field(default_factory=LanguageModelConfig)
    files: FilesConfig = Field(default_factory=FilesConfig)
    recorded: RecordedConfig = Field(default_factory=RecordedConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)

    @model_validator(mode="before")
    @classmethod
    def _of_the_domain(cls, data: Any) -> Any:
        """Give what the domain says to keys that were left out; refuse another domain's budget."""
        if not isinstance(data, dict):
            return data
        from galoop import plugins

        name = data.get("domain", cls.model_fields["domain"].default)
        if not isinstance(name, str) or name not in plugins.names("domains"):
            return data  # refused elsewhere, with what there is
        domain = plugins.load("domains", name)()
        keys = dict(getattr(domain, "budget_keys", {}))
        data = {k: dict(v) if isinstance(v, dict) else v for k, v in data.items()}
        filled = {f"artifact.{key}": value for key, value in keys.items()}
        for key, value in {**getattr(domain, "defaults", {}), **filled}.items():
            section, _, leaf = key.rpartition(".")
            table = data.setdefault(section, {}) if section else data
            if isinstance(table, dict):
                table.setdefault(leaf, value)
        artifact = data.get("artifact")
        for key in budget_names():
            if isinstance(artifact, dict) and artifact.get(key) is not None and key not in keys:
                raise PydanticCustomError(
                    "budget_key",
                    "the domain {domain} takes {takes}",
                    {"key": f"artifact.{key}", "domain": name, "takes": " and ".join(keys)},
                )
        return data

    @property
    def run_path(self) -> Path:
        """The run folder: ``run_dir``, or ``runs/<name>``."""
        return Path(self.run_dir) if self.run_dir else Path("runs") / self.name

    def manifest(self) -> dict[str, Any]:
        """What must be equal for a run folder to be resumed, as flat JSON-compatible data.

        Everything that shapes a result is in it. Left out, so that they may change between two
        runs of one folder: the caps (``max_*`` and ``loop.rounds``: raising one goes on where
        the run stopped, stages that have finished stay finished), the memory for captured
        prefills, the isolation tier, and the names ``name`` and ``run_dir``. A probe, an artifact
        or a suite's data given as a path counts by its content, not by its path.
        """
        flat: dict[str, Any] = {"schema": MANIFEST_SCHEMA}
        for knob in knobs():
            value = knob.get(self)
            if knob.section == "data":
                if value:  # absent otherwise, so that older run folders can be resumed
                    flat[knob.key] = _data_identity(value)
            elif not knob.free and not (knob.budget and value is None):
                flat[knob.key] = list(value) if isinstance(value, tuple) else value
        flat["discriminator.seed_probe"] = _path_identity(self.discriminator.seed_probe)
        flat["artifact.start"] = _path_identity(self.artifact.start)
        return flat

    def to_toml(self) -> str:
        """The experiment as a commented TOML file that :func:`load` reads back as equal."""
        from galoop._toml import render

        return render(self)


class Knob:
    """One setting: where it stands in the file, its flag, its type and its default.

    Attributes
    ----------
    section : str
        The table of the file; empty for a top-level key.
    name : str
        The key within the table.
    field : FieldInfo
        Pydantic's record of it.
    """

    def __init__(self, section: str, name: str, field: FieldInfo) -> None:
        self.section = section
        self.name = name
        self.field = field

    @property
    def key(self) -> str:
        """Dotted key, for example ``discriminator.max_candidates``."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def flag(self) -> str:
        """Command-line flag, for example ``--discriminator.max-candidates``."""
        return "--" + self.key.replace("_", "-")

    @property
    def default(self) -> Any:
        """The value when the file says nothing; None where there is none (an unset cap)."""
        return self.field.get_default(call_default_factory=True)

    @property
    def description(self) -> str:
        """One sentence for help texts, comments and the documentation."""
        return self.field.description or ""

    @property
    def free(self) -> bool:
        """Whether the knob may change when a run is resumed."""
        return self._extra.get("resume") == "free"

    @property
    def budget(self) -> bool:
        """Whether it states a budget: which of these there are is the domain's."""
        return bool(self._extra.get("budget"))

    @property
    def unset(self) -> str:
        """What leaving it out means, where there is no default: ``no cap``."""
        return str(self._extra.get("unset", "no cap"))

    @property
    def _extra(self) -> dict[str, Any]:
        extra = self.field.json_schema_extra
        return dict(extra) if isinstance(extra, dict) else {}

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        from galoop._toml import allowed_values

        return allowed_values(self.field)

    def get(self, config: ExperimentConfig) -> Any:
        """The knob's value in ``config``."""
        table = getattr(config, self.section) if self.section else config
        return getattr(table, self.name)


def sections() -> dict[str, type[Section]]:
    """The tables of the experiment file in order: name -> model."""
    found: dict[str, type[Section]] = {}
    for name, info in ExperimentConfig.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            found[name] = info.annotation
    return found


def knobs() -> Iterator[Knob]:
    """Every setting of the experiment file, in its order."""
    tables = sections()
    for name, info in ExperimentConfig.model_fields.items():
        if name not in tables:
            yield Knob("", name, info)
    for section, table in tables.items():
        for name, info in table.model_fields.items():
            yield Knob(section, name, info)


def load(path: Path | str | None, overrides: Mapping[str, Any] | None = None) -> ExperimentConfig:
    """Read an experiment file and apply overrides (flags).

    Parameters
    ----------
    path : Path or None
        The TOML file; None starts from the defaults.
    overrides : mapping of dotted key to value, optional
        For example ``{"discriminator.max_candidates": 50}``; they win over the file.

    Returns
    -------
    ExperimentConfig

    Raises
    ------
    ConfigError
        One line for every wrong key, type or value: the file, the key, what was given, what is
        allowed, and the key that was probably meant.
    UnknownNameError
        A domain, suite, search or proposer that no installed package declares.
    """
    file = Path(path) if path is not None else None
    data = _read(file) if file is not None else {}
    given = dict(overrides or {})
    _merge(data, given)
    _resolve_paths(data, file)
    try:
        config = ExperimentConfig.model_validate(data)
    except ValidationError as error:
        from galoop._toml import explain

        lines = explain(error, str(file) if file else "defaults", given)
        raise ConfigError("\n".join(lines)) from None
    if config.discriminator.seed_probe and not Path(config.discriminator.seed_probe).is_file():
        raise ConfigError(
            f"{file or 'flags'}: discriminator.seed_probe = "
            f"{json.dumps(config.discriminator.seed_probe)}: no such file",
            "give a probe file, or leave it empty to start from nothing",
        )
    _check_data(config, str(file or "flags"))
    _check_names(config, str(file) if file else "defaults", given)
    return config


def _check_data(config: ExperimentConfig, source: str) -> None:
    for name in DataConfig.model_fields:
        value = getattr(config.data, name)
        if value and not Path(value).exists():
            raise ConfigError(
                f"{source}: data.{name} = {json.dumps(value)}: no such file or folder",
                "give the path of your own copy, or leave it empty",
            )


def _check_names(config: ExperimentConfig, source: str, given: Mapping[str, Any]) -> None:
    """Refuse names that no installed package declares; nothing is imported for it."""
    from galoop import plugins

    lines = []
    for knob in knobs():
        group = _GROUP_OF.get(knob.key)
        if group is None:
            continue
        known = plugins.names(group)
        value = knob.get(config)
        for name in value if isinstance(value, tuple) else (value,):
            if name not in known:
                where = f"flag {knob.flag}" if knob.key in given else source
                lines.append(f"{where}: {knob.key}: {plugins.unknown(group, name, known)}")
    if lines:
        raise UnknownNameError("\n".join(lines))


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file", f"`gal init {file}` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def _merge(data: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for key, value in overrides.items():
        section, _, name = key.rpartition(".")
        if not section:
            data[name] = value
            continue
        table = data.setdefault(section, {})
        if isinstance(table, dict):  # a scalar there is reported by the validation
            table[name] = list(value) if isinstance(value, tuple) else value


def _resolve_paths(data: dict[str, Any], file: Path | None) -> None:
    """Take a relative path of a file as relative to that file, where it exists there."""
    if file is None:
        return
    paths = [("data", name) for name in DataConfig.model_fields]
    for section, name in (("discriminator", "seed_probe"), ("artifact", "start"), *paths):
        table = data.get(section)
        value = table.get(name) if isinstance(table, dict) else None
        if not isinstance(table, dict) or not isinstance(value, str) or not value:
            continue
        beside = file.parent / value
        if not Path(value).is_absolute() and not Path(value).exists() and beside.exists():
            table[name] = str(beside)


def _path_identity(value: str) -> str:
    """A file or folder by its content; anything else (a name, an expression) as it is."""
    path = Path(value) if value else None
    try:
        if path is not None and path.is_file():
            return "content:" + content_hash(path.read_text(encoding="utf-8"))
        if path is not None and (path / "artifact.toml").is_file():
            texts = {
                p.relative_to(path).as_posix(): p.read_text(encoding="utf-8")
                for p in sorted(path.rglob("*"))
                if p.is_file() and "__pycache__" not in p.parts
            }
            return "content:" + files_hash(texts)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{value}: cannot be read: {error}") from None
    return value


def _data_identity(value: str) -> str:
    """A suite's file or folder by its content, whatever its place."""
    try:
        return "content:" + tree_hash(Path(value))
    except OSError as error:
        raise ConfigError(f"{value}: cannot be read: {error}") from None
