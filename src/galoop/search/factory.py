"""A search engine by name, set up as the experiment says."""

from __future__ import annotations

from galoop.config import ExperimentConfig
from galoop.plugins import load
from galoop.search.protocol import Search


def make(name: str, config: ExperimentConfig) -> Search:
    """A fresh search engine.

    Parameters
    ----------
    name : str
        An entry point of the group ``galoop.searches``: a class or function without arguments. One
        that has an attribute ``configured`` is called through that, with the experiment.
    config : ExperimentConfig

    Raises
    ------
    UnknownNameError, UsageError
        See :func:`galoop.plugins.load`.
    """
    found = load("searches", name)
    configured = getattr(found, "configured", None)
    made: Search = found() if configured is None else configured(config)
    return made
