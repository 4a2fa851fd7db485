"""The codec grammar: the built-in generator of quantized caches."""

from galoop.domains.quantized_kv.grammar.proposer import SPACE, CodecGrammar

__all__ = ["SPACE", "CodecGrammar"]
