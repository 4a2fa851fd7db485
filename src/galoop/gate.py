"""What the gate of an experiment is made of, and whether anything could pass it at all."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.errors import UsageError
from galoop.evaluation.noninferiority import examples_needed
from galoop.hashing import derive_seed
from galoop.suites.registry import with_data
from galoop.types import Example


def suite_components(
    config: ExperimentConfig,
    session: DomainSession,
    n: int | None = None,
    *,
    purpose: str = "suite",
) -> list[tuple[str, list[Example]]]:
    """Every component of the gate's suites with its examples: ``ruler/vt`` -> examples.

    Parameters
    ----------
    n : int, optional
        Examples of each component; ``gate.examples`` by default. Fewer are the first ones of more.
    purpose : str
        Part of the seed: what serves another purpose shares no example.

    Raises
    ------
    UsageError
        A component that no suite has, or that cannot be built at ``gate.length``.
    """
    found = []
    for suite, component in component_names(config):
        seed = derive_seed(purpose, config.seed, suite, component)
        examples = session.suite_examples(suite, component, n or config.gate.examples, seed)
        found.append((f"{suite}/{component}", examples))
    return found


def component_names(config: ExperimentConfig) -> list[tuple[str, str]]:
    """(suite, component) of ``gate.suites`` and ``gate.components``, suite by suite.

    A suite of which no component is named takes part with all of its own.
    """
    suites = {name: with_data(name, config.data) for name in config.gate.suites}
    available = {name: suite.components() for name, suite in suites.items()}
    known = [name for names in available.values() for name in names]
    for name in config.gate.components:
        for title, suite in suites.items():
            missing = suite.missing() if hasattr(suite, "missing") else {}
            if name in missing and name not in known:
                raise UsageError(f"gate.components: {title}/{name}: {missing[name]}")
        if available and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
            where = ", ".join(config.gate.suites)
            raise UsageError(f"gate.components: no component {name!r} in {where}; {hint}")
    return [
        (suite, component)
        for suite, names in available.items()
        for component in [c for c in config.gate.components if c in names] or names
    ]


def check_gate(config: ExperimentConfig, session: DomainSession) -> None:
    """Say at once what would otherwise end a run at its gate, hours later.

    Raises
    ------
    UsageError
        An unknown component, one that cannot be built at ``gate.length``, or a gate that even an
        identical artifact could not pass.
    """
    if not config.gate.suites:
        return
    suite_components(config, session, 1)
    least = _least("gate.delta", config.gate.delta, config.gate.alpha)
    if config.gate.examples < least:
        raise UsageError(
            f"gate.examples = {config.gate.examples}: with a margin of gate.delta = "
            f"{config.gate.delta:g} fewer than {least} examples can never pass",
            f"raise gate.examples to {least} or more, or widen gate.delta",
        )


def check_confirmation(config: ExperimentConfig, left: Sequence[int]) -> None:
    """Say at once when no artifact could be accepted on the confirmation set.

    Parameters
    ----------
    left : sequence of int
        Open examples of each slice, oldest first, that the primary set leaves.

    Raises
    ------
    UsageError
        Too few examples for the improvement test (McNemar, exact), or for the test that an
        earlier slice was not lost.
    """
    knobs = config.generator
    fix = "raise admission.examples, or lower generator.examples"
    improved = math.ceil(math.log(knobs.alpha) / math.log(0.5) - 1e-9)
    if min(left) < 1 or sum(left) < improved:
        raise UsageError(
            f"generator.examples = {knobs.examples} leaves {max(0, *left)} of a slice's open "
            f"examples to confirm an improvement; at generator.alpha = {knobs.alpha:g} fewer than "
            f"{improved} can never show one",
            fix,
        )
    if len(left) > 1:
        held = _least("generator.slice_delta", knobs.slice_delta, knobs.alpha)
        if min(left[:-1]) < held:
            raise UsageError(
                f"generator.examples = {knobs.examples} leaves {min(left[:-1])} of a slice's open "
                f"examples; with generator.slice_delta = {knobs.slice_delta:g} fewer than {held} "
                "can never show that an earlier slice was not lost",
                fix,
            )


def _least(key: str, delta: float, alpha: float) -> int:
    if not 0.0 < delta < 1.0:
        raise UsageError(f"{key} = {delta:g} must lie strictly between 0 and 1")
    return examples_needed(delta, alpha)
