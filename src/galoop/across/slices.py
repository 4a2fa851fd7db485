"""Slices out of their run: the experiment that they came from, as far as they need it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from galoop import plugins
from galoop.benchmark import ABOUT, Slice, read_slice
from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.errors import GaloopError, UsageError
from galoop.evaluation.admission import Criterion
from galoop.types import Example, State


@dataclass(frozen=True)
class Machine:
    """On what systems are run.

    ``model`` None is the slice's own; ``dtype`` auto is then the slice's too, and else what suits
    the processor.
    """

    model: str | None = None
    dtype: str = "auto"
    device: str = "cpu"
    threads: int = 0
    require_isolation: bool = False


@dataclass(frozen=True)
class Origin:
    """A slice with what is known of where it came from.

    Attributes
    ----------
    path : Path
    slice : Slice
    length : int
        Tokens that its probe was asked for; 0 where nobody knows.
    """

    path: Path
    slice: Slice
    length: int

    @property
    def domain(self) -> str:
        """The domain it was found in."""
        return self.slice.domain

    @property
    def budget(self) -> dict[str, float]:
        """The budget that it was found under."""
        return self.slice.budget

    @property
    def criterion(self) -> Criterion:
        """The criterion that it was admitted by."""
        known = self.slice.about.get("criterion", {})
        return Criterion(float(known.get("tau0", 0.8)), float(known.get("tau", 0.3)))

    @property
    def artifact(self) -> str:
        """What it was found against: a folder of its run, or a name.

        Raises
        ------
        UsageError
            It was found against a generation whose folder is not beside it.
        """
        against = str(self.slice.about.get("against", "A0"))
        folder = self.path.resolve().parent.parent / "artifacts" / against.lower()
        if (folder / "artifact.toml").is_file():
            return str(folder)
        name = str(self.slice.about.get("artifact", ""))
        if against == "A0" and name:
            return name
        raise UsageError(
            f"{self.path}: the slice was found against {against}, whose folder is not in its run",
            "name an artifact with --artifact",
        )


def read_origin(path: Path, length: int | None = None) -> Origin:
    """Read a slice folder, and the experiment file of its run where it is still there.

    Parameters
    ----------
    length : int, optional
        What the caller says the length was.

    Raises
    ------
    StoreError
        No slice, or a changed one.
    """
    frozen = read_slice(path)
    known = frozen.about.get("length")
    if length is None and not isinstance(known, int):
        known = _length_of_run(path.resolve().parent.parent / "experiment.toml")
    return Origin(path, frozen, int(length or known or 0))


def _length_of_run(file: Path) -> int:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("discriminator", {})
        return int(table.get("length", 0))
    except (OSError, ValueError, AttributeError, TypeError):
        return 0


def slice_folders(source: Path) -> list[Path]:
    """The slices of a run folder in the order of their numbers, or the slice folder itself.

    Raises
    ------
    UsageError
        Neither.
    """
    if (source / ABOUT).is_file():
        return [source]
    found = [p.parent for p in (source / "benchmark").glob(f"*/{ABOUT}")]
    if not found:
        raise UsageError(
            f"{source}: no slice folder, and no run folder that holds one",
            "give benchmark/B1 of a run, or the run folder",
        )
    return sorted(found, key=lambda p: (len(p.name), p.name))


def experiment_of(
    origin: Origin, machine: Machine, *, domain: str | None = None, length: int | None = None
) -> ExperimentConfig:
    """The experiment in which a slice's examples are built and answered.

    Raises
    ------
    UnknownNameError
        No such domain.
    """
    kind = plugins.load("domains", domain or origin.domain)()
    answer = max((e.max_new_tokens for e in origin.slice.open), default=16)
    return _checked(
        {
            "domain": kind.name,
            "model": {
                "name": machine.model or origin.slice.about["model"],
                "dtype": _dtype(origin, machine),
                "device": machine.device,
                "threads": machine.threads,
            },
            "artifact": {"start": "identity", **kind.null_budget},
            "discriminator": {"length": length or origin.length or 256},
            "evaluation": {"max_new_tokens": answer},
            "isolation": {"require": machine.require_isolation},
        }
    )


def _checked(data: dict[str, Any]) -> ExperimentConfig:
    try:
        return ExperimentConfig.model_validate(data)
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, e['loc']))} = {e['input']!r}: {e['msg']}" for e in error.errors()
        )
        raise UsageError(said) from None


def _dtype(origin: Origin, machine: Machine) -> str:
    """What was asked for; else that of the slice, on its own model."""
    about = origin.slice.about
    own = machine.model in (None, about["model"])
    known = str(about.get("dtype", "auto"))
    if machine.dtype == "auto" and own and known in ("bfloat16", "float32", "float16"):
        return known
    return machine.dtype


@contextmanager
def opened(config: ExperimentConfig, say: Callable[[str], None]) -> Iterator[DomainSession]:
    """The experiment's domain, closed at the end."""
    session: DomainSession = plugins.load("domains", config.domain)().open(config, say)
    try:
        yield session
    finally:
        session.close()


@dataclass(frozen=True)
class Rebuilt:
    """Examples of a probe at some length, or why there are none."""

    examples: tuple[Example, ...] = ()
    reason: str = ""


def rebuild(
    origin: Origin,
    machine: Machine,
    seeds: Sequence[int],
    length: int,
    say: Callable[[str], None],
) -> Rebuilt:
    """Run a slice's probe program at a length."""
    try:
        config = experiment_of(origin, machine, length=length)
        with opened(config, say) as session:
            built = session.build_probe(origin.slice.probe.source, seeds)
    except (GaloopError, ValueError) as error:
        return Rebuilt(reason=one_line(error))
    if built.state is not State.SCORED:
        return Rebuilt(reason=f"the probe is rejected at {length} tokens: {built.rejected}")
    return Rebuilt(tuple(built.examples))


def check_length(origin: Origin, machine: Machine, say: Callable[[str], None]) -> None:
    """Make sure that the probe, at the length that is believed to be its own, gives the slice.

    Raises
    ------
    UsageError
        The length is not known, or another one.
    """
    fix = "say it with --length: the experiment's discriminator.length"
    if not origin.length:
        raise UsageError(f"{origin.path}: it is not known for which length it was built", fix)
    frozen = origin.slice.open[:3]
    rebuilt = rebuild(origin, machine, [e.seed for e in frozen], origin.length, say)
    if [e.key for e in rebuilt.examples] != [e.key for e in frozen]:
        why = rebuilt.reason or "other examples than the frozen ones come out"
        raise UsageError(
            f"{origin.path}: its probe does not build the slice at {origin.length} tokens: {why}",
            fix,
        )


def one_line(error: Exception) -> str:
    """An error as a reason in a cell."""
    return " ".join(str(error).split())[:400]
