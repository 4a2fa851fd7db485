"""Build a probe's examples: run it isolated, trust nothing, check everything on this side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from galoop.domains.text.contract import ProbeRules, probe_contract
from galoop.domains.text.static import check_source
from galoop.domains.text.tokens import TokenCounter
from galoop.domains.text.validation import check_example, check_variety
from galoop.errors import UsageError
from galoop.probing.builder import MOST_MESSAGE, IsolatedBuilder, clip, distinct
from galoop.probing.static import Rejection
from galoop.types import Example, State

if TYPE_CHECKING:
    from galoop.isolation import ForkServer, Limits, Tier

_LEAST_LENGTH = 32


@dataclass(frozen=True)
class ProbeResult:
    """What became of one probe.

    Attributes
    ----------
    examples : tuple of Example
        In the order of the seeds; empty when rejected.
    rejected : str
        The reason, for people and proposers; empty when accepted.
    state : State
        ``scored`` when accepted; ``invalid`` when the probe broke its contract; ``failed`` when
        it crashed, hung or ran over its limits.
    code : str
        One stable word for the reason (``too-long``, ``answer-given-away``, …); empty when
        accepted.
    """

    examples: tuple[Example, ...]
    rejected: str = ""
    state: State = State.SCORED
    code: str = ""


class ProbeBuilder(IsolatedBuilder[ProbeResult]):
    """The trusted side of the probe contract.

    Owns a fork server whose warm parent has loaded the tokenizer and nothing else. Every probe
    runs in two fresh forks of it: the second one builds the same seeds in the opposite order, and
    has to come to the same examples.

    Parameters
    ----------
    tokenizer_dir : Path
        The model's folder (``tokenizer.json``, ``tokenizer_config.json``).
    tier : Tier or None
        How to isolate; None takes the best that works here.
    length : int
        Most tokens of a context, and the ``length`` that ``build`` is given.
    max_context_tokens : int
        What the model's window leaves for a context, after template, question and answer.
    max_new_tokens : int
        Length of the answers in tokens.
    limits : Limits or None
        Of one fork, which builds all the seeds of one call; None means 10 seconds, 512 MB.
    max_question_tokens : int
        Most tokens of question and answer prefix together.

    Raises
    ------
    UsageError
        When ``length`` is too small, or larger than the window allows.
    """

    canary = "def build(rng, length, count_tokens):\n    return {'context': '', 'question': ''}\n"
    serve = "galoop.domains.text.worker:serve"

    def __init__(
        self,
        tokenizer_dir: Path,
        *,
        tier: Tier | None = None,
        length: int,
        max_context_tokens: int,
        max_new_tokens: int = 16,
        limits: Limits | None = None,
        max_question_tokens: int = 96,
    ) -> None:
        if length < _LEAST_LENGTH:
            raise UsageError(
                f"a context length of {length} tokens is too small for a probe",
                f"use at least {_LEAST_LENGTH}",
            )
        if length > max_context_tokens:
            raise UsageError(
                f"a context of {length} tokens does not fit: the model's window leaves "
                f"{max_context_tokens} beside template, question and answer",
                "lower the length or take a model with a larger window",
            )
        self.rules = ProbeRules(
            length=length,
            max_context_tokens=max_context_tokens,
            max_new_tokens=max_new_tokens,
            max_question_tokens=max_question_tokens,
        )
        self._tokenizer_dir = Path(tokenizer_dir).resolve()
        self._counter = TokenCounter(self._tokenizer_dir)
        self._tier = tier
        self._limits = limits

    @property
    def contract(self) -> str:
        """The contract in words, with this builder's numbers."""
        return probe_contract(self.rules)

    def build(self, source: str, seeds: Sequence[int]) -> ProbeResult:
        """Build and check one example a seed.

        Parameters
        ----------
        source : str
            The text of the probe.
        seeds : sequence of int
            Distinct seeds; one example each, in this order.

        Returns
        -------
        ProbeResult
            All the examples, or none and the reason: one bad example rejects the probe.

        Raises
        ------
        IsolationError
            When the isolation itself does not work. Never because of what a probe did.
        """
        wanted = distinct(seeds)
        fault = check_source(source, self.rules)
        if fault is not None:
            return _rejected(fault)
        first = self._run(source, wanted, "first")
        if isinstance(first, ProbeResult):
            return first
        examples = self._check(first, wanted)
        if isinstance(examples, ProbeResult):
            return examples
        second = self._run(source, wanted[::-1], "second")
        if isinstance(second, ProbeResult):
            return second
        for seed, one, other in zip(wanted, first, second[::-1], strict=True):
            if one != other:
                return _rejected(_not_deterministic(seed, one, other))
        return ProbeResult(tuple(examples))

    def _check(self, values: list[Any], seeds: list[int]) -> list[Example] | ProbeResult:
        checked = [
            check_example(value, seed, self.rules, self._counter)
            for value, seed in zip(values, seeds, strict=True)
        ]
        faults = [
            (seed, item)
            for seed, item in zip(seeds, checked, strict=True)
            if isinstance(item, Rejection)
        ]
        if faults:
            seed, fault = faults[0]
            others = f", and {len(faults) - 1} more of {len(seeds)} seeds" if faults[1:] else ""
            return _rejected(Rejection(fault.code, f"{fault.reason} (seed {seed}{others})"))
        examples = [item for item in checked if isinstance(item, Example)]
        repeated = check_variety(examples)
        return examples if repeated is None else _rejected(repeated)

    def _run(self, source: str, seeds: list[int], salt: str) -> list[Any] | ProbeResult:
        """One fork's results, one a seed and each still unchecked, or why there are none."""
        request = {"source": source, "seeds": seeds, "length": self.rules.length, "salt": salt}
        reply = self._call(request)
        if isinstance(reply, ProbeResult):
            return reply
        error = reply.get("error")
        if isinstance(error, Mapping):
            return _from_error(error)
        results = reply.get("results")
        if not isinstance(results, list) or len(results) != len(seeds):
            return _rejected(
                Rejection(
                    "forged-reply",
                    "the probe's process sent something else than its examples: only return a "
                    "dict from build",
                )
            )
        return results

    def _refused(self, fault: Rejection, state: State) -> ProbeResult:
        return _rejected(fault, state)

    def _started(self) -> tuple[ForkServer, Limits]:
        from galoop.isolation import ForkServer, Limits

        if self._limits is None:
            self._limits = Limits(seconds=10.0, memory_mb=512, output_bytes=16 * 2**20)
        if self._server is None:
            self._server = ForkServer(
                "galoop.domains.text.worker:warm",
                {"tokenizer_dir": str(self._tokenizer_dir)},
                tier=self._tier,
                readable=[self._tokenizer_dir],
                name="probes",
            )
        return self._server, self._limits


def _rejected(fault: Rejection, state: State = State.INVALID) -> ProbeResult:
    return ProbeResult((), rejected=clip(fault.reason), state=state, code=fault.code)


def _from_error(error: Mapping[str, Any]) -> ProbeResult:
    """Turn an error reply, which the probe may have forged, into a rejection."""
    kind = error.get("kind")
    message = str(error.get("message", ""))[: 2 * MOST_MESSAGE]
    seed = error.get("seed")
    at = f" for seed {seed}" if isinstance(seed, int) else ""
    if kind == "memory":
        return _rejected(
            Rejection("memory", f"the probe did not finish{at}: {message}: build less at a time"),
            State.FAILED,
        )
    if kind == "result":
        return _rejected(
            Rejection("wrong-type", f"{message}{at}: return a dict of text as described")
        )
    when = "when it is loaded" if kind == "load" else f"in build{at}"
    return _rejected(Rejection("raises", f"the probe raises {when}: {message}: correct it"))


def _not_deterministic(seed: int, one: Any, other: Any) -> Rejection:
    where = ""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [key for key in one if one[key] != other.get(key)]
        where = f" in {', '.join(str(key)[:40] for key in keys[:3])}" if keys else ""
    return Rejection(
        "not-deterministic",
        f"two builds of seed {seed} differ{where}: draw from the rng argument only, keep no state "
        "between calls, and do not depend on the order of a set",
    )
