"""Language models in the proposer's seat: any provider, any compatible server, any callable."""

from galoop.proposers.language_model.completion import Complete, Completion, ModelUnavailable
from galoop.proposers.language_model.proposer import LanguageModelProposer

__all__ = ["Complete", "Completion", "LanguageModelProposer", "ModelUnavailable"]
