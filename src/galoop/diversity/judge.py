"""A language model's opinion on how different two probes are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module

from galoop.diversity.distance import mean_of_pairs
from galoop.diversity.model import Distances
from galoop.errors import InfrastructureError, UsageError

#: Text to text: any language model, or a person.
Judge = Callable[[str], str]

_LONGEST = 6000
_PROMPT = """\
Two programs write test examples for a language model. Say how different the *abilities* are that
they test: what has to be done with the context to answer. Names, topics, wording, lengths and
random choices do not count.

0: the same ability. 5: related abilities. 10: abilities with nothing in common.

First program:

{first}

Second program:

{second}

End your answer with one line: DIFFERENCE: <a whole number from 0 to 10>
"""


def prompt(first: str, second: str) -> str:
    """What the judge is asked of two programs; long ones are cut."""
    return _PROMPT.format(first=first[:_LONGEST], second=second[:_LONGEST])


def read_answer(answer: str) -> float | None:
    """The last stated difference, over 10; None where none is stated."""
    found = re.findall(r"DIFFERENCE:\s*\**\s*(\d+)(?!\.?\d)", answer)
    value = int(found[-1]) if found else None
    return value / 10 if value is not None and value <= 10 else None


def judged(judge: Judge, names: Sequence[str], sources: Sequence[str]) -> Distances:
    """Ask for every pair, in both orders, because judges favour positions.

    Parameters
    ----------
    judge : callable
        Its errors are not caught.
    names, sources : sequence of str

    Returns
    -------
    Distances
        In [0, 1], the mean of both orders; None for a pair where an answer could not be read.
    """
    n = len(sources)
    rows: list[list[float | None]] = [[0.0 if i == j else None for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(i):
            one = read_answer(judge(prompt(sources[i], sources[j])))
            other = read_answer(judge(prompt(sources[j], sources[i])))
            if one is not None and other is not None:
                rows[i][j] = rows[j][i] = (one + other) / 2
    return Distances(tuple(names), tuple(map(tuple, rows)), mean_of_pairs(rows))


def load_judge(where: str) -> Judge:
    """The callable that ``module:function`` names.

    Raises
    ------
    UsageError
        It cannot be imported, or is not callable.
    """
    module, colon, name = where.partition(":")
    if not colon or not module or not name:
        raise UsageError(f"--judge {where!r}: not of the form MODULE:FUNCTION")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        raise UsageError(
            f"--judge {where!r}: cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise UsageError(f"--judge {where!r}: is no callable but a {type(found).__name__}")

    def asked(text: str) -> str:
        try:
            return str(found(text))
        except Exception as error:
            raise InfrastructureError(
                f"the judge {where} failed: {type(error).__name__}: {error}"
            ) from error

    return asked
