"""Flags that are generated from the experiment file's models, and what the run commands share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click

from galoop.config import ExperimentConfig, Knob, knobs, load, sections
from galoop.errors import ExitCode, GaloopError

if TYPE_CHECKING:
    from galoop.report.model import LoopResult
    from galoop.report.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])


class Interrupted(GaloopError):
    """The user stopped the command."""

    exit_code = ExitCode.INTERRUPTED


class KnobOption(click.Option):
    """A flag made from a knob; remembers the knob for grouping and overrides."""

    def __init__(self, *args: Any, knob: Knob, **kwargs: Any) -> None:
        self.knob = knob
        super().__init__(*args, **kwargs)


class ExperimentCommand(click.Command):
    """A command whose help shows the experiment's flags table by table."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, then one section a table."""
        own: list[tuple[str, str]] = []
        tables: dict[str, list[tuple[str, str]]] = {name: [] for name in ("", *sections())}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            if isinstance(parameter, KnobOption):
                tables[parameter.knob.section].append(record)
            else:
                own.append(record)
        with formatter.section("Options"):
            formatter.write_dl(own)
        for name, rows in tables.items():
            with formatter.section(f"[{name}]" if name else "Experiment"):
                formatter.write_dl(rows)


def experiment_options(function: F) -> F:
    """Add one flag for each knob of the experiment file, and ``--require-isolation``."""
    for knob in reversed(list(knobs())):
        function = _add(function, knob)
    return click.option(
        "--require-isolation",
        is_flag=True,
        help="Refuse to run candidate code in plain processes (isolation.require).",
    )(function)


def budget_options(function: F) -> F:
    """One flag for each key of a budget: ``--compression-ratio``, ``--bits`` and so on."""
    for knob in reversed([knob for knob in knobs() if knob.budget]):
        function = click.option(
            "--" + knob.name.replace("_", "-"),
            knob.name,
            type=click.FLOAT,
            default=None,
            help=f"{knob.description} [default: the slice's own]",
        )(function)
    return function


def _add(function: F, knob: Knob) -> F:
    kind = _click_type(knob)
    shown = knob.default
    if isinstance(shown, tuple):
        shown = ",".join(shown)
    flag = f"{knob.flag}/--no-{knob.flag[2:]}" if kind is click.BOOL else knob.flag
    return click.option(
        flag,
        _parameter(knob.key),
        cls=KnobOption,
        knob=knob,
        type=None if kind is click.BOOL else kind,
        default=None,
        show_default=False,
        metavar=_metavar(knob, kind),
        help=f"{knob.description} [default: {knob.unset if knob.budget else _shown(shown)}]",
    )(function)


def _metavar(knob: Knob, kind: click.ParamType[Any]) -> str | None:
    if isinstance(kind, click.Choice):
        return "[" + "|".join(kind.choices) + "]"
    if kind is click.BOOL:
        return None
    return "NAMES" if _is_list(knob) else kind.name.upper()


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_list(knob: Knob) -> bool:
    return get_origin(knob.field.annotation) is tuple


def _click_type(knob: Knob) -> click.ParamType[Any]:
    annotation = knob.field.annotation
    if get_origin(annotation) is Literal:
        return click.Choice([str(a) for a in get_args(annotation)])
    kinds = [annotation, *get_args(annotation)]
    kinds += [inner for kind in kinds for inner in get_args(kind)]  # Annotated in an optional
    for python, kind in ((bool, click.BOOL), (int, click.INT), (float, click.FLOAT)):
        if python in kinds:
            return kind
    return click.STRING


def _parameter(key: str) -> str:
    return "knob__" + key.replace(".", "__")


def overrides(parameters: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, as overrides of :func:`galoop.config.load`."""
    given: dict[str, Any] = {}
    for knob in knobs():
        value = parameters.get(_parameter(knob.key))
        if value is None:
            continue
        if _is_list(knob):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        given[knob.key] = value
    if parameters.get("require_isolation"):
        given["isolation.require"] = True
    return given


def experiment(path: Path | None, parameters: dict[str, Any]) -> ExperimentConfig:
    """The experiment that a run command was asked for."""
    return load(path, overrides(parameters))


def _stop(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def keeping(run_dir: Path) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a message that says what is kept and how to go on."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; every finished evaluation is kept in {run_dir}",
            "run the same command to go on",
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def run_and_print(
    config: ExperimentConfig,
    work: Callable[[ExperimentConfig, Path, Progress], LoopResult],
    as_json: bool,
    quiet: bool,
) -> LoopResult:
    """Run ``work`` under a progress view and print its result."""
    from galoop.report import progress, terminal

    run_dir = config.run_path
    with keeping(run_dir), progress.for_stream(quiet=quiet) as view:
        result = work(config, run_dir, view)
    if as_json:
        click.echo(result.dumps(), nl=False)
    else:
        terminal.print_result(result)
        click.echo(f"\nrun folder: {run_dir}\nreport:     {run_dir / 'report.html'}")
    return result


experiment_argument = click.argument(
    "path", metavar="[EXPERIMENT]", required=False, type=click.Path(path_type=Path)
)
