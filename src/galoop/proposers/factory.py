"""Built-in proposers by name; each takes a seat and returns a Proposer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from galoop.errors import UsageError
from galoop.proposers.protocol import Proposer, Seat

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig


def check(
    config: ExperimentConfig, searches: Iterable[Literal["discriminator", "generator"]]
) -> None:
    """Refuse at once what a proposer would refuse once its turn comes, hours later perhaps.

    Raises
    ------
    UsageError
        No model, key or run is named where one is needed, or an extra is not installed.
    """
    used = {getattr(config, search).proposer for search in searches}
    if "language-model" in used:
        from galoop.proposers.language_model.client import check_settings

        check_settings(config.language_model)
    if "recorded" in used and not config.recorded.run:
        raise UsageError(
            "recorded.run is empty", "name the run folder whose proposals are handed back"
        )


def grammar(seat: Seat) -> Proposer:
    """Readable programs over a stated space, mutated as syntax trees; needs no model and no key."""
    if seat.kind == "probe":
        from galoop.proposers.grammar.probes import ProbeGrammar

        return ProbeGrammar(seat.seed)
    from galoop import plugins

    domain = plugins.load("domains", seat.domain)()
    space = getattr(domain, "artifact_grammar", None)
    if space is None:
        raise UsageError(
            f"the grammar has no space of artifacts for the domain {seat.domain!r}",
            "choose another proposer (`gal list proposers`)",
        )
    made: Proposer = space(seat)
    return made


def language_model(seat: Seat) -> Proposer:
    """Any language model through litellm (extra `llm`), or any OpenAI-compatible server."""
    from galoop.proposers.language_model import LanguageModelProposer

    return LanguageModelProposer(seat)


def files(seat: Seat) -> Proposer:
    """Each request in a folder, and a wait for its answer: a person or another program."""
    from galoop.proposers.files import FilesProposer

    return FilesProposer(seat)


def recorded(seat: Seat) -> Proposer:
    """What an earlier run proposed, handed back without any model."""
    from galoop.proposers.recorded import RecordedProposer

    return RecordedProposer(seat)
