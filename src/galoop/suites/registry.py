"""Suites by name, through the door that plugins use (:mod:`galoop.plugins`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from galoop import plugins
from galoop.errors import UsageError
from galoop.suites.protocol import Suite

if TYPE_CHECKING:
    from galoop.config import DataConfig


def list_suites() -> dict[str, str]:
    """Name -> one line (the first of its docstring, or why it cannot be used)."""
    return {found.name: found.error or found.summary for found in plugins.listing("suites")}


def load(name: str, **options: Any) -> Suite:
    """Return the suite of that name.

    Parameters
    ----------
    name : str
        One of :func:`list_suites`.
    **options
        Passed on to the suite (RULER: ``max_new_tokens``, ``window``).

    Raises
    ------
    UnknownNameError
        If no suite has that name.
    UsageError
        If the suite cannot be imported, or does not know an option.
    """
    factory = plugins.load("suites", name)
    try:
        suite: Suite = factory(**options)
    except TypeError as error:
        raise UsageError(f"the suite {name} cannot be made with these options: {error}") from error
    return suite


def with_data(name: str, data: DataConfig) -> Suite:
    """The suite of that name, given those of the experiment's files that it reads.

    Raises
    ------
    UnknownNameError, UsageError
        As :func:`load`.
    """
    takes = getattr(plugins.load("suites", name), "takes", ())
    paths = {key: getattr(data, key) for key in takes if getattr(data, key, "")}
    return load(name, **{key: Path(path) for key, path in paths.items()})
