"""``gal init``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from galoop.cli.options import ExperimentCommand, experiment, experiment_options
from galoop.errors import UsageError

EPILOG = """\b
Exit codes:
  0  written
  4  usage: the file exists, or a wrong flag"""


@click.command("init", cls=ExperimentCommand, epilog=EPILOG)
@click.argument("target", default="experiment.toml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@experiment_options
def command(target: Path, force: bool, **parameters: Any) -> int:
    """Write a commented experiment file.

    TARGET is the file, experiment.toml by default; - writes to standard output. Flags set values
    in it.
    """
    text = experiment(None, parameters).to_toml()
    if str(target) == "-":
        click.echo(text, nl=False)
        return 0
    try:
        with open(target, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{target} exists", "--force overwrites it") from None
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {target}; run it with `gal loop {target}`")
    return 0
