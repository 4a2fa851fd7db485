"""``gal discover``."""

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
  0  a slice was admitted
  1  the search ended and nothing was admitted
  2  interrupted: run the same command to go on
  3  infrastructure: a model, the store or the isolation failed
  4  usage: a wrong flag, file, key or name
  5  nothing was evaluated"""


@click.command("discover", cls=ExperimentCommand, epilog=EPILOG)
@experiment_argument
@click.option(
    "--frozen",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="SLICE",
    help="A slice folder that a new probe should differ from. May be repeated.",
)
@result_options
@experiment_options
def command(
    path: Path | None, frozen: tuple[Path, ...], as_json: bool, quiet: bool, **parameters: Any
) -> int:
    """Search for a slice that breaks an artifact (the discriminator).

    The artifact is `--artifact.start`. What is found is tested on fresh seeds and, when both
    bounds hold, frozen as a slice in the run folder.
    """
    config = experiment(path, parameters)
    from galoop.loop import discover

    def work(config: ExperimentConfig, run_dir: Path, progress: Progress) -> LoopResult:
        return discover(config, run_dir, progress, frozen=frozen)

    result = run_and_print(config, work, as_json, quiet)
    return ExitCode.OK if result.slices else ExitCode.FAILED
