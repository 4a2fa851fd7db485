"""Flags and output that commands on slices share.

Nothing of the experiment file is needed here, so that their help answers fast.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from galoop.across.matrix import Matrix
    from galoop.across.scope import Scope

F = TypeVar("F", bound=Callable[..., Any])

slice_argument = click.argument("slice_dir", metavar="SLICE", type=click.Path(path_type=Path))
artifact_option = click.option(
    "--artifact", default=None, help="[default: what the slice was found against]"
)
model_option = click.option("--model", default=None, help="[default: the slice's own]")
length_option = click.option(
    "--length",
    type=click.IntRange(min=32),
    default=None,
    help="The slice's own length, where neither the slice nor its run says it.",
)
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
device_option = click.option(
    "--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."
)
isolation_option = click.option(
    "--require-isolation", is_flag=True, help="Refuse to run code in plain processes."
)
DTYPES = click.Choice(["auto", "bfloat16", "float32", "float16"])

_FLAGS = (
    click.option(
        "--dtype",
        default="auto",
        show_default=True,
        type=DTYPES,
        help="auto: the slice's own on its own model, else what suits the processor.",
    ),
    device_option,
    click.option(
        "--threads",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Threads of torch; 0 leaves the choice to torch.",
    ),
    isolation_option,
    click.option(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        help="Where answers are kept, so that the same command goes on and pays nothing twice.",
    ),
)


def machine_options(function: F) -> F:
    """``--dtype``, ``--device``, ``--threads``, ``--require-isolation``, ``--run-dir``, …"""
    function = result_options(function)
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function


def result_options(function: F) -> F:
    """``--json`` and ``--quiet``."""
    function = click.option("--quiet", is_flag=True, help="Show no progress.")(function)
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(
        function
    )


def save_and_print(
    folder: Path,
    name: str,
    title: str,
    found: Scope | Matrix,
    *,
    maps: str,
    as_json: bool,
    as_markdown: bool = False,
) -> None:
    """Save grids in a run folder as ``NAME.json``, ``.md`` and ``.html``, and print them.

    ``maps`` is what the page is called: ``heat map``.
    """
    from galoop.across import view

    view.save(folder, name, title, found.to_json(), found.grids, found.words)
    if as_json:
        click.echo(view.dumps(found.to_json()), nl=False)
    elif as_markdown:
        click.echo(view.markdown(title, found.grids, found.words), nl=False)
    else:
        view.print_grids(title, found.grids, found.words)
        click.echo(f"\n{maps}: {folder / f'{name}.html'}")


def folder_of(command: str, slice_dir: Path) -> Path:
    """Where a command on a slice keeps its answers by default: ``runs/scope-demo-B1``."""
    path = slice_dir.resolve()
    run = path.parent.parent.name if path.parent.name == "benchmark" else ""
    return Path("runs") / "-".join(part for part in (command, run, path.name) if part)


def numbers(kind: Callable[[str], Any], text: str, what: str) -> tuple[Any, ...]:
    """``0.25,0.5`` as numbers.

    Raises
    ------
    UsageError
        Something else.
    """
    from galoop.errors import UsageError

    try:
        found = tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise UsageError(f"{what}: {text!r} is no list of numbers", "for example 0.25,0.5")
    return found
