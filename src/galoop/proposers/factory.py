"""Built-in proposers by name; each takes a seat and returns a Proposer."""

from __future__ import annotations

from galoop.errors import UsageError
from galoop.proposers.protocol import Proposer, Seat


def grammar(seat: Seat) -> Proposer:
    """Readable programs over a stated space, mutated as syntax trees; needs no model and no key."""
    if seat.kind == "probe":
        from galoop.proposers.grammar.probes import ProbeGrammar

        return ProbeGrammar(seat.seed)
    if seat.domain == "kv-compression":
        from galoop.domains.kv_compression.grammar import PressGrammar

        return PressGrammar(seat.seed)
    raise UsageError(
        f"the grammar has no space of artifacts for the domain {seat.domain!r}",
        "choose another proposer (`gal list proposers`)",
    )


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
