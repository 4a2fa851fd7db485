"""Flags of commands that take a slice out of its run: on what it is answered, and where it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS = (
    click.option(
        "--dtype",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "bfloat16", "float32", "float16"]),
        help="auto: the slice's own on its own model, else what suits the processor.",
    ),
    click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
    click.option(
        "--threads",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Threads of torch; 0 leaves the choice to torch.",
    ),
    click.option(
        "--require-isolation", is_flag=True, help="Refuse to run code in plain processes."
    ),
    click.option(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        help="Where answers are kept, so that the same command goes on and pays nothing twice.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
)


def machine_options(function: F) -> F:
    """``--dtype``, ``--device``, ``--threads``, ``--require-isolation``, ``--run-dir``, …"""
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function


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
