"""What all RULER tasks share: a draft of an example, and the haystack's size as the free knob."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from galoop.suites.material import NOISE, stream, words

__all__ = ["NOISE", "Draft", "Task", "stream", "words"]


@dataclass(frozen=True)
class Draft:
    """The parts of an example that depend on chance and on the size of the haystack."""

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...] = ()


class Task(Protocol):
    """One task in one form.

    ``draft(seed, units)`` is a pure function; more units make a longer context and leave the
    question, and what it asks for, alone.
    """

    @property
    def name(self) -> str:
        """Name of the component."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """RULER's length of the answer, in tokens."""
        ...

    @property
    def fewest_units(self) -> int:
        """Smallest haystack that still makes the task."""
        ...

    @property
    def most_units(self) -> int:
        """Largest haystack that there is material for."""
        ...

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example with a haystack of ``units``."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form, for records."""
        ...
