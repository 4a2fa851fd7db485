"""What the established suites say of an artifact: a look during the search, the gate after it.

Both compare with the start artifact A₀, component by component. The look is on examples of its own
and steers the search, so that it does not spend its few trials on what the gate must turn away; the
gate's examples are seen by nothing before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.evaluation.noninferiority import (
    ComponentVerdict,
    examples_for_power,
    judge_component,
)
from galoop.evaluation.paired import Meter, PairedEvaluator, Scores
from galoop.gate import suite_components
from galoop.search.protocol import StopSearch
from galoop.types import Example, Outcome, State

#: A second look is at this many times ``gate.look`` examples.
_SECOND_LOOK = 3
#: A component that loses more than this many times δ in a first look ends it: few examples are
#: enough to see that, and most candidates of a search end so.
_HOPELESS = 2.0


@dataclass(frozen=True)
class Component:
    """A suite's component as this experiment tests it.

    Attributes
    ----------
    name : str
        ``ruler/vt``.
    examples : list of Example
        As many as A₀'s own spread asks for (:func:`examples_for_power`), between
        ``gate.examples`` and ``gate.most_examples``.
    gates : bool
        Whether φ solves enough of it to say anything.
    old : float
        A₀'s mean score on the first ``gate.examples``; 0 where it failed.
    """

    name: str
    examples: list[Example]
    gates: bool
    old: float


@dataclass(frozen=True)
class Look:
    """What a look at the suites showed.

    Attributes
    ----------
    losses : mapping of component to float
        A₀'s mean minus the artifact's, on the components of which more than δ could be lost. Where
        one loses far more than that, those after it were not looked at.
    """

    losses: dict[str, float]

    @property
    def loss(self) -> float:
        """The largest loss, at least 0."""
        return max(0.0, *self.losses.values()) if self.losses else 0.0

    @property
    def words(self) -> str:
        """The components that lose, the worst first; "" where none does."""
        worst = sorted(self.losses.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {-loss:+.2f}" for name, loss in worst if loss > 0)


class Regression:
    """The suites of one experiment, measured against its start artifact.

    Parameters
    ----------
    config, session, evaluator
        As for :class:`galoop.generator.Generator`.
    start : System
        A₀.
    stage : str
        For the ledger.
    say : callable, optional
        Takes lines for the reader: the baseline of a gate takes minutes.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        session: DomainSession,
        evaluator: PairedEvaluator,
        start: Any,
        stage: str,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = config
        self._session = session
        self._evaluator = evaluator
        self._start = start
        self._stage = stage
        self._say = say

    @cached_property
    def components(self) -> list[Component]:
        """Every component, sized by the spread of A₀'s scores and by nothing that A₁ did."""
        knobs = self._config.gate
        most = max(knobs.examples, knobs.most_examples)
        found = []
        parts = suite_components(self._config, self._session, most)
        for number, (name, examples) in enumerate(parts, 1):
            first = examples[: knobs.examples]
            self._say(f"baseline of the gate: {name} ({number} of {len(parts)}, n = {len(first)})")
            reference, old = self._evaluator.evaluate(
                [self._session.reference(), self._start], first, stage=self._stage
            )
            old = comparable(first, reference, old)
            reference = comparable(first, reference, reference)
            gates = reference.accuracy >= knobs.reference_floor
            n, before = knobs.examples, 0.0
            if old.state is State.SCORED:
                before = old.accuracy
            if gates and before:
                wanted = examples_for_power(old.means, knobs.delta, knobs.alpha, knobs.power)
                n = min(max(n, wanted), most)
            found.append(Component(name, examples[:n], gates, before))
        return found

    # -- during the search ------------------------------------------------------------------

    @cached_property
    def _looked_at(self) -> list[tuple[str, list[Example]]]:
        """Components of which more than δ can be lost, with the examples of both looks.

        The one with most to lose comes first.
        """
        knobs = self._config.gate
        at_stake = {c.name: c.old for c in self.components if c.gates and c.old >= knobs.delta}
        built = suite_components(
            self._config, self._session, _SECOND_LOOK * knobs.look, purpose="look"
        )
        known = [part for part in built if part[0] in at_stake]
        return sorted(known, key=lambda part: -at_stake[part[0]])

    def look(
        self,
        system: Any,
        stage: str,
        meter: Meter,
        matters: Callable[[Look], bool] = lambda first: True,
    ) -> Look:
        """Compare ``system`` with A₀ on a few examples; an estimate for the search alone.

        Of many candidates the luckiest seems to lose least. So one that seems to lose no more than
        δ is looked at again, on more examples, before a trial is spent on it.

        Parameters
        ----------
        system, stage, meter
        matters : callable
            Whether a finer estimate than the given one is worth its price.

        Raises
        ------
        StopSearch
            A cap would be passed, or A₀ itself fails.
        """
        n = self._config.gate.look
        if n == 0 or system.key == self._start.key or not self._looked_at:
            return Look({})
        delta = self._config.gate.delta
        dearest, *others = [(name, examples[:n]) for name, examples in self._looked_at]
        first = self._losses(system, [dearest], stage, meter)
        if others and first.loss <= _HOPELESS * delta:
            first = Look(first.losses | self._losses(system, others, stage, meter).losses)
        if first.loss > delta or not matters(first):
            return first
        return self._losses(system, self._looked_at, stage, meter)

    def _losses(
        self, system: Any, parts: list[tuple[str, list[Example]]], stage: str, meter: Meter
    ) -> Look:
        # Several components at once: rows that share their passes cost less each.
        examples = [e for _, part in parts for e in part]
        systems = [self._start, system]
        if any(e.scoring == "likelihood" for e in examples):
            systems.insert(0, self._session.reference())
        *first, old, new = self._evaluator.evaluate(systems, examples, stage=stage, meter=meter)
        if first:
            old, new = (comparable(examples, first[0], scores) for scores in (old, new))
        if old.state is not State.SCORED:
            raise StopSearch(f"gate: A0 {_failure(old)}")
        known = new.means if new.state is State.SCORED else [0.0] * len(examples)
        losses: dict[str, float] = {}
        start = 0
        for name, part in parts:  # a suite with a fixed stock may have fewer than n
            span = slice(start, start + len(part))
            start += len(part)
            losses[name] = (sum(old.means[span]) - sum(known[span])) / len(part)
        return Look(losses)

    # -- the gate ---------------------------------------------------------------------------

    def gate(self, system: Any, say: Callable[[ComponentVerdict], None]) -> list[ComponentVerdict]:
        """Judge every component until one does not pass; those with most to lose come first.

        A component that looks failed on its first ``gate.examples`` is not finished. Stopping
        there can only turn an artifact away, so the error level is untouched.
        """
        first = self._config.gate.examples
        order = sorted(self.components, key=lambda c: (not c.gates, -c.old))
        found: dict[str, ComponentVerdict] = {}
        for component in order:
            verdict = self._verdict(component, component.examples[:first], system)
            if len(component.examples) > first and verdict.status != "fail":
                verdict = self._verdict(component, component.examples, system)
            found[component.name] = verdict
            say(verdict)
            if verdict.status in ("fail", "inconclusive"):
                break
        return [found[c.name] for c in self.components if c.name in found]

    def _verdict(
        self, component: Component, examples: list[Example], system: Any
    ) -> ComponentVerdict:
        knobs = self._config.gate
        reference, old, new = self._evaluator.evaluate(
            [self._session.reference(), self._start, system], examples, stage=self._stage
        )
        for name, scores in (("A0", old), ("the candidate", new)):
            if scores.state is not State.SCORED:
                raise StopSearch(f"gate: {component.name}: {name} {_failure(scores)}")
        old, new = (comparable(examples, reference, scores) for scores in (old, new))
        return judge_component(
            component.name,
            comparable(examples, reference, reference).means,
            old.means,
            new.means,
            knobs.delta,
            knobs.alpha,
            # Decided once, on the first examples: more of them must not turn it.
            knobs.reference_floor if not component.gates else 0.0,
        )


def comparable(examples: Sequence[Example], reference: Scores, scores: Scores) -> Scores:
    """Scores as the gate compares them.

    A likelihood (1 / perplexity) of 0.05 may be all there is to have in a text: a loss of δ = 0.1
    could not be seen. So on such examples the score is the share of the reference's likelihood that
    is left, at most 1: 0.9 where perplexity has risen by a ninth. Others stay as they are.
    """
    kinds = {e.scoring for e in examples}
    measured = reference.state is scores.state is State.SCORED
    if "likelihood" not in kinds or not measured:
        return scores
    rows: list[list[Outcome]] = []
    for example, row, (whole, *_) in zip(
        examples, scores.outcomes, reference.outcomes, strict=True
    ):
        if example.scoring == "likelihood" and whole.score:
            row = [replace(o, score=min(1.0, (o.score or 0.0) / whole.score)) for o in row]
        rows.append(row)
    return Scores(scores.system, scores.state, scores.reason, rows)


def _failure(scores: Scores) -> str:
    return f"{scores.state}: {scores.reason}"
