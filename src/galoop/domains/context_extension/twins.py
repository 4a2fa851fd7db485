"""Probes at two lengths: the same problem in the native window, and stretched beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from galoop.domains.text.probe import ProbeBuilder, ProbeResult
from galoop.types import Example

_BOTH = """
The same `build` is called twice for every seed, with an `rng` in the same state: with
`length = {native}`, what the model reads within its native window, and with `length = {far}`.
Both examples have to keep all of the above, each with its own length; {far} stands for `length`
there. The unmodified model answers the short one, the model under test the long one: write the
same problem at both lengths.
"""


class TwinBuilder:
    """Builds every example at the native length and at ``extension`` times that.

    Parameters
    ----------
    native, far : ProbeBuilder
        Builders with the two lengths.
    """

    def __init__(self, native: ProbeBuilder, far: ProbeBuilder) -> None:
        self._native = native
        self._far = far

    @property
    def contract(self) -> str:
        """The contract in words, with both lengths."""
        lengths = {"native": self._native.rules.length, "far": self._far.rules.length}
        return self._far.contract + _BOTH.format(**lengths)

    def build(self, source: str, seeds: Sequence[int]) -> ProbeResult:
        """The long examples, each with its native twin; see :meth:`ProbeBuilder.build`."""
        native = self._native.build(source, seeds)
        if not native.examples:
            return _at(native, self._native)
        far = self._far.build(source, seeds)
        if not far.examples:
            return _at(far, self._far)
        return replace(far, examples=tuple(map(twin, far.examples, native.examples)))

    def close(self) -> None:
        """End the sandboxes."""
        self._native.close()
        self._far.close()


def twin(far: Example, native: Example) -> Example:
    """The long example with its twin."""
    return replace(far, native=native)


def _at(result: ProbeResult, builder: ProbeBuilder) -> ProbeResult:
    """The rejection, with the length at which it arose."""
    return replace(result, rejected=f"at length {builder.rules.length}: {result.rejected}")
