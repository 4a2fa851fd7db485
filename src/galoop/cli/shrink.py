"""``gal shrink``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from galoop.cli.machine import (
    artifact_option,
    folder_of,
    length_option,
    machine_options,
    model_option,
    seed_option,
    slice_argument,
)

EPILOG = """\b
Exit codes:
  0  a smaller program was confirmed on fresh seeds
  1  nothing smaller was confirmed; the original stands
  2  interrupted: run the same command to go on
  3  infrastructure: a model, the store or the isolation failed, or the slice was changed
  4  usage: a wrong flag, folder or name, or a slice that does not break its artifact here"""


@click.command("shrink", epilog=EPILOG)
@slice_argument
@artifact_option
@model_option
@length_option
@click.option(
    "--examples",
    type=click.IntRange(min=4),
    default=12,
    show_default=True,
    help="Examples of a smaller program, on seeds of its own.",
)
@click.option(
    "--fresh",
    type=click.IntRange(min=16),
    default=40,
    show_default=True,
    help="Fresh examples of the test at the end.",
)
@seed_option
@click.option(
    "--max-candidates",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    help="Hard cap: programs tried.",
)
@click.option(
    "--max-evaluations", type=click.IntRange(min=1), default=None, help="Hard cap: answers."
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Hard cap: wall time. Ends a shrink at a machine-dependent point.",
)
@click.option(
    "--keep/--no-keep",
    default=True,
    show_default=True,
    help="Show the smaller program in the report of the run that the slice came from.",
)
@machine_options
def command(
    slice_dir: Path,
    artifact: str | None,
    model: str | None,
    length: int | None,
    examples: int,
    fresh: int,
    seed: int,
    max_candidates: int,
    max_evaluations: int | None,
    max_seconds: float | None,
    keep: bool,
    dtype: str,
    device: str,
    threads: int,
    require_isolation: bool,
    run_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Make a slice's probe as small and plain as it can be.

    SLICE is a slice folder, which is not changed. Statements, words and numbers are left out or
    made plainer as long as the artifact still loses; what is left is tested on fresh seeds as an
    admission is. Answers and results are kept in the run folder (runs/shrink-RUN-SLICE).
    """
    from galoop.across.slices import Machine
    from galoop.cli.options import keeping
    from galoop.errors import ExitCode
    from galoop.report import progress
    from galoop.shrink.run import Ask, shrink
    from galoop.shrink.search import Knobs

    knobs = Knobs(
        examples=examples,
        fresh=fresh,
        sealed=fresh,
        seed=seed,
        max_candidates=max_candidates,
        max_evaluations=max_evaluations,
        max_seconds=max_seconds,
    )
    folder = run_dir or folder_of("shrink", slice_dir)
    with keeping(folder), progress.for_stream(quiet=quiet) as shown:
        found = shrink(
            slice_dir,
            Ask(artifact, length, knobs, keep),
            run_dir=folder,
            machine=Machine(model, dtype, device, threads, require_isolation),
            progress=shown,
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
    else:
        click.echo(found.source)
        click.echo(f"{found.words}\nended by: {found.stopped_by}\nrun folder: {folder}")
    return ExitCode.OK if found.confirmed else ExitCode.FAILED
