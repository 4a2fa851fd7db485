"""The words of the design as types: example, outcome, candidate, feedback.

Plain frozen data without behaviour beyond (de)serialisation, so that every layer may use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from galoop.hashing import content_hash, files_hash

Scoring = Literal["all", "fraction", "any", "letters", "truth", "likelihood"]


@dataclass(frozen=True)
class Example:
    """One input with its gold answer (d in the paper).

    Attributes
    ----------
    context : str
        The text that is prefilled and, for a KV-compression artifact, compressed.
    question : str
        Asked after the context; never compressed.
    answers : tuple of str
        The gold answers.
    answer_prefix : str
        Text that the system's answer is made to start with.
    evidence : tuple of str
        Passages of the context from which the answer follows.
    seed : int
        The seed that the probe was given.
    max_new_tokens : int
        Length of the greedy answer, in tokens.
    scoring : {"all", "fraction", "any", "letters", "truth", "likelihood"}
        ``all``: 1 if every gold answer occurs as a whole word, else 0 (probes).
        ``fraction``: the fraction of gold answers that occur as substrings (RULER's
        ``string_match_all``). ``any``: 1 if any occurs (RULER's ``string_match_part``).
        ``letters`` and ``truth`` are L-Eval's rules (:mod:`galoop.domains.text.choices`).
        ``likelihood``: nothing is generated. The one gold answer is a continuation of the text,
        fed token by token, and the score is ``exp(-mean nll)``, 1 / perplexity; ``measured`` holds
        ``nll`` (nats a token) and ``scored_tokens`` (``max_new_tokens`` at most). Context,
        question and answer are then plain text that follow one another, without chat template.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    answer_prefix: str = ""
    evidence: tuple[str, ...] = ()
    seed: int = 0
    max_new_tokens: int = 16
    scoring: Scoring = "all"

    @property
    def key(self) -> str:
        """Content hash of everything a system sees or is scored against."""
        data = asdict(self)
        data.pop("seed")
        data.pop("evidence")
        return content_hash(data)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the inverse of :meth:`from_json`."""
        data = asdict(self)
        for name in ("answers", "evidence"):
            data[name] = list(data[name])
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Example:
        """Rebuild an example that :meth:`to_json` wrote."""
        known = dict(data)
        for name in ("answers", "evidence"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


class State(StrEnum):
    """What became of one evaluation."""

    SCORED = "scored"
    INVALID = "invalid"  # the candidate broke its contract
    FAILED = "failed"  # the candidate crashed or ran over its limits
    INFRASTRUCTURE = "infrastructure"  # ours: never a score


@dataclass(frozen=True)
class Outcome:
    """What a system answered on one example, and its score.

    ``score`` is None unless ``state`` is ``scored``. ``measured`` holds what the harness measured
    of the budget (for example ``{"kept_fraction": 0.25, "kept_bytes": 1.4e6}``).
    """

    state: State
    answer: str = ""
    score: float | None = None
    reason: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the inverse of :meth:`from_json`."""
        return {
            "state": str(self.state),
            "answer": self.answer,
            "score": self.score,
            "reason": self.reason,
            "measured": dict(self.measured),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Rebuild an outcome that :meth:`to_json` wrote."""
        return cls(
            state=State(data["state"]),
            answer=data["answer"],
            score=data["score"],
            reason=data["reason"],
            measured=dict(data["measured"]),
        )


Kind = Literal["probe", "artifact"]


@dataclass(frozen=True)
class Candidate:
    """A program that a search proposes: a probe (one file ``probe.py``) or an artifact folder.

    Attributes
    ----------
    kind : {"probe", "artifact"}
    files : mapping of relative POSIX path to text
    note : str
        One line saying what was changed, for people.
    """

    kind: Kind
    files: Mapping[str, str]
    note: str = ""

    @property
    def key(self) -> str:
        """Content hash of kind and files (not of the note)."""
        return content_hash([self.kind, files_hash(self.files)])

    @property
    def source(self) -> str:
        """The text of a one-file candidate (a probe)."""
        (text,) = self.files.values()
        return text


@dataclass(frozen=True)
class Excerpt:
    """One example shortened for a reader or a prompt: what was asked, and what came back."""

    prompt: str
    gold: str
    reference: str
    artifact: str


@dataclass(frozen=True)
class Feedback:
    """What the harness tells a proposer about one evaluated candidate.

    Attributes
    ----------
    state : State
    score : float
        The scalar that the search maximises, never negative; 0 is the floor (invalid, failed).
    objectives : mapping of str to float
        The Pareto axes; always every axis, 0 where nothing was measured.
    reason : str
        Why the candidate was rejected, when it was.
    excerpts : tuple of Excerpt
    details : mapping
        Further figures, JSON-compatible and small.
    """

    state: State
    score: float
    objectives: Mapping[str, float]
    reason: str = ""
    excerpts: tuple[Excerpt, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
