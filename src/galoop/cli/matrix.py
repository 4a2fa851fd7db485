"""``gal matrix``."""

from __future__ import annotations

from pathlib import Path

import click

from galoop.cli.machine import machine_options, save_and_print

EPILOG = """\b
Exit codes:
  0  the matrix is filled in; cells that could not run say why
  2  interrupted: run the same command to go on
  3  infrastructure: a model, the store or the isolation failed
  4  usage: a wrong flag, folder or name
  5  nothing was evaluated: no cell could run"""


@click.command("matrix", epilog=EPILOG)
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--artifact",
    "artifacts",
    multiple=True,
    help="A name, an expression, a folder, or DOMAIN:NAME. May be repeated. [default: the "
    "artifacts of the run folders]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="A model. May be repeated. [default: each slice's own]",
)
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    default=None,
    help="First N open examples of each slice. [default: all]",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@machine_options
def command(
    sources: tuple[Path, ...],
    artifacts: tuple[str, ...],
    models: tuple[str, ...],
    examples: int | None,
    as_markdown: bool,
    dtype: str,
    device: str,
    threads: int,
    require_isolation: bool,
    run_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run every slice against every artifact and model.

    SOURCES are run folders (all their slices and artifacts) and slice folders. Each slice keeps its
    own budget. Answers are kept in the run folder, runs/matrix by default, and so are matrix.json,
    matrix.md and the heat map, matrix.html.
    """
    from galoop.across.matrix import matrix
    from galoop.across.slices import Machine
    from galoop.cli.options import keeping
    from galoop.report import progress

    folder = run_dir or Path("runs") / "matrix"
    with keeping(folder), progress.for_stream(quiet=quiet) as shown:
        found = matrix(
            sources,
            artifacts,
            models,
            run_dir=folder,
            examples=examples,
            machine=Machine(None, dtype, device, threads, require_isolation),
            progress=shown,
        )
    title = f"Slices × artifacts: {len(found.slices)} × {len(found.artifacts)}"
    save_and_print(
        folder, "matrix", title, found, maps="heat map", as_json=as_json, as_markdown=as_markdown
    )
    return 0
