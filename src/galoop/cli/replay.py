"""``gal replay``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from galoop.cli.machine import (
    DTYPES,
    device_option,
    isolation_option,
    result_options,
    slice_argument,
)
from galoop.cli.options import budget_options

EPILOG = """\b
Exit codes:
  0  every artifact was scored
  1  an artifact broke its contract or its budget
  2  interrupted
  3  infrastructure: a model, the store or the isolation failed
  4  usage: a wrong flag, folder or name
  5  nothing was evaluated"""


@click.command("replay", epilog=EPILOG)
@slice_argument
@click.option(
    "--artifact",
    "artifacts",
    multiple=True,
    required=True,
    help="A name, an expression or a folder. May be repeated.",
)
@click.option("--model", default=None, help="Model name [default: the slice's own].")
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=DTYPES,
)
@device_option
@click.option("--domain", default=None, help="Domain [default: the slice's own].")
@budget_options
@click.option("--limit", type=click.IntRange(min=1), default=None, help="First N examples only.")
@isolation_option
@result_options
def command(
    slice_dir: Path,
    artifacts: tuple[str, ...],
    model: str | None,
    dtype: str,
    device: str,
    domain: str | None,
    limit: int | None,
    require_isolation: bool,
    as_json: bool,
    quiet: bool,
    **budget: float | None,
) -> int:
    """Run a slice against any artifact and model.

    SLICE is a slice folder (benchmark/B1 of a run folder).
    """
    from galoop.errors import ExitCode
    from galoop.loop import replay
    from galoop.report import progress, terminal

    with progress.for_stream(quiet=quiet) as view:
        result = replay(
            slice_dir,
            artifacts,
            model=model,
            dtype=dtype,
            device=device,
            domain=domain,
            budget={key: value for key, value in budget.items() if value is not None},
            limit=limit,
            require_isolation=require_isolation,
            progress=view,
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1, ensure_ascii=False))
    else:
        terminal.print_replay(result)
    return ExitCode.FAILED if any(row.invalid for row in result.rows) else ExitCode.OK
