"""``gal improve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from galoop.cli.machine import result_options
from galoop.cli.options import (
    ExperimentCommand,
    experiment,
    experiment_argument,
    experiment_options,
    run_and_print,
)
from galoop.errors import ExitCode

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig
    from galoop.report.model import LoopResult
    from galoop.report.progress import Progress

EPILOG = """\b
Exit codes:
  0  an artifact was accepted: better on the slices, no suite component lost
  1  the search ended and nothing was accepted
  2  interrupted: run the same command to go on
  3  infrastructure: a model, the store or the isolation failed
  4  usage: a wrong flag, file, key or name
  5  nothing was evaluated"""


@click.command("improve", cls=ExperimentCommand, epilog=EPILOG)
@experiment_argument
@click.option(
    "--slice",
    "slices",
    multiple=True,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="SLICE",
    help="A slice folder to repair, oldest first. May be repeated.",
)
@result_options
@experiment_options
def command(
    path: Path | None, slices: tuple[Path, ...], as_json: bool, quiet: bool, **parameters: Any
) -> int:
    """Search for an artifact that repairs slices (the generator).

    It starts from `--artifact.start` and keeps its budget. The slices together must get better; no
    slice and no suite component may get worse.
    """
    config = experiment(path, parameters)
    from galoop.loop import improve

    def work(config: ExperimentConfig, run_dir: Path, progress: Progress) -> LoopResult:
        return improve(config, run_dir, progress, slices=slices)

    result = run_and_print(config, work, as_json, quiet)
    accepted = any(generation.accepted for generation in result.generations)
    return ExitCode.OK if accepted else ExitCode.FAILED
