"""The confined process of one artifact: ask for its plan, check it, measure it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from galoop.domains.context_extension.checks import Measured, PlanError, check, check_reach, measure
from galoop.domains.context_extension.wire import most_bytes, unpack
from galoop.domains.text.runner import Forks, Made, Runner, Work, bad, checked
from galoop.methods.positions import Plan, Shape
from galoop.types import Candidate, State

if TYPE_CHECKING:
    from galoop.isolation import Child


@dataclass(frozen=True)
class Laid:
    """A checked plan of every layer and head, and what was measured of it."""

    rows: list[list[Plan]]
    measured: Mapping[str, float] = field(default_factory=dict)


class PlanRunner(Runner):
    """Asks an artifact once for each length; what it says depends on nothing else.

    Parameters
    ----------
    forks, candidate, budget, trusted
        See :class:`galoop.domains.text.runner.Runner`.
    shape : Shape
        With the extension of the artifact's budget.
    kept : dict
        Plans by length, kept by the session from one call to the next.
    """

    def __init__(
        self,
        forks: Forks,
        candidate: Candidate,
        budget: Mapping[str, float],
        *,
        shape: Shape,
        kept: dict[int, Laid],
        trusted: bool = False,
    ) -> None:
        super().__init__(forks, candidate, budget, trusted=trusted)
        self._shape = shape
        self._kept = kept

    @property
    def most(self) -> int:
        """Most tokens that the artifact has to serve."""
        return int(self.budget["extension"] * self._shape.window)

    def length_for(self, tokens: int) -> int:
        """The length that a plan is asked for: whole native windows, so that few are needed."""
        windows = -(-tokens // self._shape.window)
        return min(max(1, windows) * self._shape.window, self.most)

    def laid(self, work: Work, tokens: int) -> Laid | Made:
        """The plan for a prompt of so many tokens with its answer, or why there is none."""
        if tokens > self.most:
            return bad(
                State.INVALID,
                f"the example needs {tokens} tokens, and an extension of "
                f"{self.budget['extension']:g} reaches {self.most}",
            )
        length = self.length_for(tokens)
        if length not in self._kept:
            self._wanted = length
            made = self.make(work)
            if made.outcome is not None:
                self._failed = made
                return made
        return self._kept[length]

    def ask(self, child: Child, spec: Mapping[str, Any], work: Work, seed: int) -> Made:
        """One plan. Nothing of the example is sent: its length decides."""
        from galoop.isolation import new_output_memfd, read_output

        shape, length = self._shape, self._wanted
        about = {**asdict(shape), "frequencies": shape.frequencies.tolist()}
        # The random state is that of the artifact, not of the example.
        request = {"op": "plan", "seed": 0, "shape": about, "length": length}
        out = new_output_memfd("plan")
        try:
            reply = checked(child.call(request, [out]))
            data = read_output(out, most_bytes(shape.head_dim // 2, length))
            rows = unpack(reply, data, shape.layers, shape.heads, shape.head_dim // 2, length)
            self._kept[length] = _checked(rows, shape, length)
        except (PlanError, ValueError) as error:
            return bad(State.INVALID, str(error))
        finally:
            os.close(out)
        return Made(measured=dict(self._kept[length].measured))


def _checked(rows: list[list[Plan]], shape: Shape, length: int) -> Laid:
    found: dict[int, tuple[Plan, Measured]] = {}
    for row in rows:
        for plan in row:
            if id(plan) not in found:
                found[id(plan)] = check(plan, shape, length)
    good = [[found[id(plan)][0] for plan in row] for row in rows]
    check_reach(good, length)
    measured = measure(found[id(plan)][1] for row in rows for plan in row)
    return Laid(good, {**measured, "length_over_window": length / shape.window})
