"""The selector grammar: the built-in generator of sparse decoding."""

from galoop.domains.sparse_decoding.grammar.proposer import SPACE, SelectorGrammar

__all__ = ["SPACE", "SelectorGrammar"]
