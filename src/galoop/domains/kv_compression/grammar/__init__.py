"""The press grammar: the built-in generator of KV-cache compression."""

from galoop.domains.kv_compression.grammar.proposer import SPACE, PressGrammar

__all__ = ["SPACE", "PressGrammar"]
