"""What a language model returns, whoever calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from galoop.proposers.protocol import Cost


@dataclass(frozen=True)
class Completion:
    """One answer of a language model.

    Attributes
    ----------
    text : str
    cost : Cost
        Its dollars are None (unknown) unless they are stated. Seconds are measured by the caller.
    finished : bool
        False when the model ran into its limit of tokens.
    about : mapping
        Small JSON-compatible facts for the log.
    """

    text: str
    cost: Cost = field(default_factory=lambda: Cost(None))
    finished: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)


#: Takes chat messages (``{"role": …, "content": …}``) and returns the answer; raises
#: :class:`ModelUnavailable` when there is none.
Complete = Callable[[Sequence[Mapping[str, str]]], "str | Completion"]


class ModelUnavailable(Exception):
    """No answer after all tries, or the request was refused.

    Parameters
    ----------
    reason : str
        Without keys.
    cost : Cost
        What the tries may have cost.
    """

    def __init__(self, reason: str, cost: Cost | None = None) -> None:
        self.reason = reason
        self.cost = cost or Cost()
        super().__init__(reason)
