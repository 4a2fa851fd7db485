"""The plan grammar: the built-in generator of context extension."""

from galoop.domains.context_extension.grammar.proposer import SPACE, PlanGrammar

__all__ = ["SPACE", "PlanGrammar"]
