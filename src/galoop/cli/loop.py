"""``gal loop``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from galoop.cli.machine import result_options
from galoop.cli.options import (
    ExperimentCommand,
    experiment,
    experiment_argument,
    experiment_options,
    run_and_print,
)

EPILOG = """\b
Exit codes:
  0  the rounds ran to their end, whatever was found
  2  interrupted: run the same command to go on
  3  infrastructure: a model, the store or the isolation failed
  4  usage: a wrong flag, file, key or name
  5  nothing was evaluated"""


@click.command("loop", cls=ExperimentCommand, epilog=EPILOG)
@experiment_argument
@result_options
@experiment_options
def command(path: Path | None, as_json: bool, quiet: bool, **parameters: Any) -> int:
    """Run rounds of discriminator and generator: the whole loop.

    EXPERIMENT is a TOML file (`gal init` writes one); without it the defaults hold. A flag wins
    over the file. Results go to the run folder; the same command goes on where it was stopped.
    """
    config = experiment(path, parameters)
    from galoop.diversity.save import save_if_installed
    from galoop.loop import run_loop

    run_and_print(config, run_loop, as_json, quiet)
    save_if_installed(config.run_path)
    return 0
