"""``gal scope``."""

from __future__ import annotations

from pathlib import Path

import click

from galoop.cli.machine import (
    artifact_option,
    folder_of,
    length_option,
    machine_options,
    model_option,
    numbers,
    save_and_print,
    seed_option,
    slice_argument,
)

EPILOG = """\b
Exit codes:
  0  the grids are filled in; cells that could not run say why
  2  interrupted: run the same command to go on
  3  infrastructure: a model, the store or the isolation failed, or the slice was changed
  4  usage: a wrong flag, folder or name, or a length at which the slice cannot be rebuilt
  5  nothing was evaluated: no cell could run"""


@click.command("scope", epilog=EPILOG)
@slice_argument
@artifact_option
@model_option
@click.option(
    "--budget",
    metavar="[KEY=]VALUES",
    default=None,
    help="Values of the budget, such as 0.25,0.5 or compression_ratio=0.25,0.5; the slice's own "
    "comes with them.",
)
@click.option(
    "--lengths",
    metavar="TOKENS",
    default=None,
    help="Lengths of the context, such as 128,512. [default: half, once, twice and four times]",
)
@click.option(
    "--depths",
    metavar="SHARES",
    default="0,0.25,0.5,0.75,1",
    show_default=True,
    help="Places of the evidence, 0 start, 1 end; an empty list leaves the depth out.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    help="Examples of a cell.",
)
@length_option
@seed_option
@machine_options
def command(
    slice_dir: Path,
    artifact: str | None,
    model: str | None,
    budget: str | None,
    lengths: str | None,
    depths: str,
    examples: int,
    length: int | None,
    seed: int,
    dtype: str,
    device: str,
    threads: int,
    require_isolation: bool,
    run_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Measure how a slice's failure depends on budget, length and depth.

    SLICE is a slice folder. Its probe program builds new examples at every length; at its own
    length their evidence is also moved through the context. Answers are kept in the run folder
    (runs/scope-RUN-SLICE), and so are scope.json, scope.md and the heat maps, scope.html.
    """
    from galoop.across.scope import Ask, scope
    from galoop.across.slices import Machine
    from galoop.cli.options import keeping
    from galoop.report import progress

    key, _, values = (budget or "").rpartition("=")
    ask = Ask(
        key,
        numbers(float, values, "--budget") if values else None,
        numbers(int, lengths, "--lengths") if lengths else None,
        numbers(float, depths, "--depths") if depths else (),
        examples,
        seed,
    )
    folder = run_dir or folder_of("scope", slice_dir)
    with keeping(folder), progress.for_stream(quiet=quiet) as shown:
        found = scope(
            slice_dir,
            ask,
            artifact=artifact,
            length=length,
            run_dir=folder,
            machine=Machine(model, dtype, device, threads, require_isolation),
            progress=shown,
        )
    title = f"How far {found.slice} reaches: {found.artifact} on {found.model}"
    save_and_print(folder, "scope", title, found, maps="heat maps", as_json=as_json)
    return 0
