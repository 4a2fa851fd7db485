"""Scores of answers against gold, on the trusted side only.

``all`` is for probes: every gold answer has to occur as a word or phrase of its own.
``fraction`` and ``any`` are RULER's two rules (``string_match_all`` and ``string_match_part``;
Hsieh et al., arXiv 2404.06654, appendix): plain substrings without regard to case, averaged
over the gold answers or satisfied by any of them. ``letters`` and ``truth`` are L-Eval's
(:mod:`.choices`). ``likelihood`` scores no text: the decoder measures it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from galoop.domains.text.choices import letters_score, truth_score
from galoop.types import Example

_DIGITS = re.compile(r"\d")


def normalise(text: str) -> str:
    """Fold case and turn every run of white space into one space."""
    return " ".join(text.casefold().split())


@lru_cache(maxsize=4096)
def _phrase(normalised: str) -> re.Pattern[str]:
    """Pattern of a normalised phrase that is not part of a longer word or number."""
    first, last = normalised[0], normalised[-1]
    before = r"(?<!\w)" if re.match(r"\w", first) else ""
    after = r"(?!\w)" if re.match(r"\w", last) else ""
    # "3" is neither in "2.3" nor in "3.5", nor "4" in "4,821": the number goes on.
    if _DIGITS.match(first):
        before += r"(?<!\d[.,])"
    if _DIGITS.match(last):
        after += r"(?![.,]\d)"
    return re.compile(before + re.escape(normalised) + after)


def occurs(phrase: str, text: str) -> bool:
    """Whether ``phrase`` occurs in ``text`` as whole words.

    Case and the kind and amount of white space do not matter. A word character (letter, digit,
    underscore) may not directly precede or follow, and a number may not go on over a decimal
    point or a thousands comma. An empty phrase occurs nowhere.
    """
    wanted = normalise(phrase)
    return bool(wanted) and _phrase(wanted).search(normalise(text)) is not None


def score(response: str, example: Example) -> float:
    """Score one response.

    Parameters
    ----------
    response : str
        What the system wrote after ``answer_prefix`` (special tokens already removed).
    example : Example
        Its ``answers`` and ``scoring`` are used, and nothing else.

    Returns
    -------
    float
        In [0, 1]. ``all``: 1 if every gold answer :func:`occurs`, else 0. ``fraction``: the
        share of gold answers that are substrings. ``any``: 1 if one is a substring. ``letters``
        and ``truth``: see :mod:`.choices`; the best over the gold answers.

    Raises
    ------
    ValueError
        No gold answer, or an example whose score is no matter of a text (``likelihood``).
    """
    if not example.answers:
        raise ValueError("an example without gold answers cannot be scored")
    if example.scoring == "all":
        return float(all(occurs(answer, response) for answer in example.answers))
    if example.scoring == "letters":
        return max(letters_score(response, answer) for answer in example.answers)
    if example.scoring == "truth":
        return max(truth_score(response, answer) for answer in example.answers)
    if example.scoring == "likelihood":
        raise ValueError("an example of kind likelihood is scored by its tokens, not by a text")
    # RULER compares lower-cased strings and does nothing else to them.
    lowered = response.lower()
    hits = [answer.lower() in lowered for answer in example.answers]
    if example.scoring == "fraction":
        return sum(hits) / len(hits)
    return float(any(hits))
