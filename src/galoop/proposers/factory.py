"""Built-in proposers by name; each takes (domain, kind, seed) and returns a Proposer."""

from __future__ import annotations

from galoop.errors import UsageError
from galoop.proposers.protocol import Proposer
from galoop.types import Kind


def grammar(domain: str, kind: Kind, seed: int) -> Proposer:
    """Readable programs over a stated space, mutated as syntax trees; needs no model and no key."""
    if kind == "probe":
        from galoop.proposers.grammar.probes import ProbeGrammar

        return ProbeGrammar(seed)
    if domain == "kv-compression":
        from galoop.domains.kv_compression.grammar import PressGrammar

        return PressGrammar(seed)
    raise UsageError(
        f"the grammar has no space of artifacts for the domain {domain!r}",
        "choose another proposer (`gal list proposers`)",
    )
