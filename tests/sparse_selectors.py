"""Selectors for tests: honest ones, and ones that break the contract."""

from __future__ import annotations

import textwrap

from galoop.types import Candidate, State

MANIFEST = """\
[artifact]
name = "{name}"
domain = "sparse-decoding"

[budget]
density = 0.25
"""
#: The entries that a row may have, latest first, as numbers; -1 fills up.
RECENT = """\
n, k = step.length, int(step.room(self.density).max())
rows = torch.arange(k) < step.room(self.density)[:, None]
return torch.where(rows, step.visible[:, None] - 1 - torch.arange(k), -1)[None, None].expand(
    1, step.keys.shape[1], -1, -1)
"""


def selector(
    select: str = RECENT, index: str = "return {}", top: str = "", name: str = "made"
) -> Candidate:
    """An artifact with given bodies of its methods."""
    source = (
        "import time, os, sys, torch\n"
        + textwrap.dedent(top)
        + "\nclass Made:\n    def __init__(self, density):\n        self.density = density\n"
        + "    def index(self, keys, values):\n"
        + textwrap.indent(textwrap.dedent(index), " " * 8)
        + "\n    def select(self, index, step):\n"
        + textwrap.indent(textwrap.dedent(select), " " * 8)
        + "\ndef build_selector(density):\n    return Made(density)\n"
    )
    files = {"artifact.toml": MANIFEST.format(name=name), "selector.py": source}
    return Candidate("artifact", files, name)


_ALL = "return step.seen.expand(1, step.queries.shape[1], -1, -1)"
_NUMBERS = "torch.tensor([{}]).expand(1, step.queries.shape[1], step.rows, -1)"
_FORGED = """
import galoop.domains.sparse_decoding.worker as worker
def forged(self, layer, rows, new):
    self._out[:] = bytes([1]) * len(self._out)
worker.Choosing.select = forged
"""

#: name -> (artifact, state of its outcomes, words of the reason)
BAD: dict[str, tuple[Candidate, State, str]] = {
    "attends to all": (selector(_ALL), State.INVALID, "over budget"),
    "attends ahead": (
        selector("return torch.ones(1, step.keys.shape[1], step.rows, step.length, dtype=bool)"),
        State.INVALID,
        "after itself",
    ),
    "names twice": (selector("return " + _NUMBERS.format("0, 1, 0")), State.INVALID, "twice"),
    "names too far": (
        selector("return " + _NUMBERS.format("0, step.length")),
        State.INVALID,
        "out of range",
    ),
    "names minus two": (
        selector("return " + _NUMBERS.format("-2")),
        State.INVALID,
        "out of range",
    ),
    "a wrong shape": (selector("return step.seen"), State.INVALID, "shape"),
    "a short mask": (
        selector("return step.seen[None, None, :, :-1].expand(1, 4, -1, -1)"),
        State.INVALID,
        "a mask of",
    ),
    "floats": (selector("return torch.zeros(1, 4, step.rows, 2)"), State.INVALID, "float32"),
    "a list": (selector("return [0]"), State.INVALID, "not a tensor"),
    "raises": (selector("return 1 / 0"), State.FAILED, "selector.py, line 9, in select"),
    "leaves": (selector("sys.exit(3)"), State.FAILED, "SystemExit"),
    "leaves at once": (selector("os._exit(0)"), State.FAILED, "exit code 0"),
    "hangs": (selector("time.sleep(60)"), State.FAILED, "no answer within"),
    "drips": (selector("time.sleep(0.7)\n" + RECENT), State.FAILED, " s"),
    "hangs in its index": (selector(index="time.sleep(60)"), State.FAILED, "no answer within"),
    "eats memory": (
        selector(index="return {'a': torch.ones(2**31, dtype=torch.float64)}"),
        State.FAILED,
        "memory",
    ),
    "an index too large": (
        selector(index="return {'a': torch.ones(4 * keys.numel())}"),
        State.INVALID,
        "over budget: an index of",
    ),
    "a huge index": (
        selector(index="return {'a': torch.ones(2**20)}"),
        State.INVALID,
        "at most",
    ),
    "an index of lists": (selector(index="return {'a': [1]}"), State.INVALID, "dict of tensors"),
    "no index": (selector(index="return None"), State.INVALID, "not a dict"),
    "no methods": (
        Candidate(
            "artifact",
            {
                "artifact.toml": MANIFEST.format(name="bare"),
                "selector.py": "def build_selector(density):\n    return 3\n",
            },
            "bare",
        ),
        State.INVALID,
        "no method index",
    ),
    "does not load": (selector(top="raise ValueError('no')"), State.FAILED, "could not be loaded"),
    "does not parse": (selector("return ]"), State.FAILED, "does not parse"),
    "forges": (selector(top=_FORGED), State.INVALID, "after itself"),
}
