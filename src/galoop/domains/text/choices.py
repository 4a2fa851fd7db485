"""L-Eval's rules for multiple choice and for true or false.

Source: An et al., *L-Eval: Instituting Standardized Evaluation for Long Context Language Models*
(arXiv 2307.11088), its evaluation programs for the tasks coursera and sci_fi.
"""

from __future__ import annotations

import re

_OPTIONS = "ABCD"
#: A capital that stands before white space, a full stop or a bracket: ``A.``, ``B) …``, ``C ``.
_MARKED = re.compile(r"[A-Z](?=[\s.)])")
_PARTIAL = 0.25


def chosen(response: str) -> frozenset[str]:
    """The options that an answer names.

    A run of two or more option letters at its start is the answer (``ACD``). Otherwise every
    capital that stands as an option does counts, up to the word ``Question``, with which models go
    on by themselves. No letter at all counts as A, which is the original's guess.
    """
    response = response.strip()
    start = re.match(f"[{_OPTIONS}]*", response)
    leading = start.group() if start else ""
    if len(leading) > 1 or leading == response != "":
        return frozenset(leading)
    rest = response[len(leading) :].split("Question")[0]
    found = {*leading, *(letter for letter in _MARKED.findall(rest) if letter in _OPTIONS)}
    return frozenset(found or {"A"})


def letters_score(response: str, gold: str) -> float:
    """1 for exactly the gold options, 0.25 for a strict subset of them, else 0.

    Parameters
    ----------
    response : str
    gold : str
        Letters of A to D, for example ``ABD``; what follows its first word is not read.
    """
    wanted = frozenset(gold.split()[0]) & frozenset(_OPTIONS) if gold.split() else frozenset()
    if not wanted:
        raise ValueError(f"gold answer {gold!r} names none of the options {_OPTIONS}")
    given = chosen(response)
    if given == wanted:
        return 1.0
    return _PARTIAL if given < wanted else 0.0


def truth_score(response: str, gold: str) -> float:
    """1 if the first of "true" and "false" that an answer says is the gold answer's, else 0.

    A gold answer such as ``True [fact: False]`` says what holds in the text and, in brackets, what
    holds in the world; only the first is a matter of the context. What an answer says in such
    brackets is left aside too; one that says neither is wrong.
    """
    wanted = _truth(gold)
    if wanted is None:
        raise ValueError(f"gold answer {gold!r} says neither true nor false")
    return float(_truth(response) is wanted)


def _truth(text: str) -> bool | None:
    for word in text.lower().split("[fact:")[0].split():
        if "true" in word:
            return True
        if "false" in word:
            return False
    return None
