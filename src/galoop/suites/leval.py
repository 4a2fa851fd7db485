"""L-Eval's tasks coursera and sci_fi, read from a user's own copy.

Source: An et al. (arXiv 2307.11088). The data are GPL-3.0 and are not part of galoop. Each line of
``coursera.jsonl`` and ``sci_fi.jsonl`` is an object with ``input`` (the document), ``instructions``
and ``outputs`` (lists of equal length), ``evaluation`` and ``source``. Documents that are too long
lose their end, word by word, as in the original's programs; prompts say the same in other words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from galoop.domains.text.choices import letters_score, truth_score
from galoop.errors import UnknownNameError, UsageError
from galoop.suites.fitting import largest
from galoop.suites.material import stream
from galoop.types import Example, Scoring

_KEYS = ("input", "instructions", "outputs")
_FOLDERS = ("", "Closed-ended-tasks", "LEval-data/Closed-ended-tasks")


@dataclass(frozen=True)
class _Kind:
    preamble: str
    scoring: Scoring
    max_new_tokens: int


_KINDS: Mapping[str, _Kind] = {
    "coursera": _Kind(
        "Below is the text of a course. Answer the question after it from this text alone. One or "
        "several options are right: give their letters and nothing else, such as A or AB.\n\n",
        "letters",
        16,
    ),
    "sci_fi": _Kind(
        "Below is a science fiction story. Answer the question after it with True or False, by "
        "what the story says and not by what you know of the world.\n\n",
        "truth",
        8,
    ),
}


@dataclass(frozen=True)
class Question:
    """One question of a document."""

    document: int
    text: str
    instruction: str
    gold: str


@dataclass(frozen=True)
class LEval:
    """L-Eval's coursera and sci_fi, from your own copy (data.leval).

    Parameters
    ----------
    leval : Path, optional
        Folder with the two files, directly or where L-Eval's repository has them.
    """

    leval: Path | None = None
    name: str = "leval"

    takes: ClassVar[tuple[str, ...]] = ("leval",)

    def components(self) -> tuple[str, ...]:
        """``coursera`` and ``sci_fi``."""
        return tuple(_KINDS)

    def build(
        self,
        component: str,
        n: int,
        seed: int,
        length: int,
        count_tokens: Callable[[str], int],
    ) -> list[Example]:
        """Questions in an order that the seed gives, ``n`` of them or all there are.

        Raises
        ------
        UnknownNameError
            No such component.
        UsageError
            No path was given, the file is absent or has another form, or not even a hundredth
            of a document fits.
        """
        kind = self._kind(component)
        if n < 1:
            raise UsageError(f"{n} examples of {component} were asked for", "ask for at least one")
        questions = list(self._questions(component))
        stream(seed, f"leval {component}").shuffle(questions)
        cut: dict[int, str] = {}
        found = []
        for index, asked in enumerate(questions[:n]):
            if asked.document not in cut:
                cut[asked.document] = _fitting(kind.preamble, asked.text, length, count_tokens)
            found.append(
                Example(
                    context=cut[asked.document],
                    question=f"\n\nQuestion: {asked.instruction}",
                    answers=(asked.gold,),
                    answer_prefix="Answer:",
                    seed=index,
                    max_new_tokens=kind.max_new_tokens,
                    scoring=kind.scoring,
                )
            )
        return found

    def parameters(
        self, component: str, length: int, count_tokens: Callable[[str], int]
    ) -> Mapping[str, Any]:
        """Documents, questions, and how many documents lose their end at that length."""
        kind = self._kind(component)
        questions = self._questions(component)
        texts = {q.document: q.text for q in questions}
        cut = sum(count_tokens(kind.preamble + text) > length for text in texts.values())
        return {
            "form": "original" if not cut else "documents cut",
            "documents": len(texts),
            "documents_cut": cut,
            "questions": len(questions),
            "max_new_tokens": kind.max_new_tokens,
            "length": length,
        }

    def _kind(self, component: str) -> _Kind:
        if component not in _KINDS:
            raise UnknownNameError(
                f"leval has no component {component!r} here", f"components: {', '.join(_KINDS)}"
            )
        return _KINDS[component]

    def _questions(self, component: str) -> tuple[Question, ...]:
        if self.leval is None:
            raise UsageError(
                f"the suite leval reads {component} from your own copy, and data.leval is not set",
                "get L-Eval's data (GPL-3.0) and give the folder: --data.leval FOLDER",
            )
        for folder in _FOLDERS:
            file = self.leval / folder / f"{component}.jsonl"
            if file.is_file():
                return _read(file, component)
        raise UsageError(
            f"data.leval: {self.leval} has no {component}.jsonl",
            "give the folder that holds L-Eval's JSONL files",
        )


@lru_cache(maxsize=4)
def _read(file: Path, component: str) -> tuple[Question, ...]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"data.leval: {file} cannot be read: {error}") from None
    found: list[Question] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found += _document(line, f"data.leval: {file}, line {number}", number, component)
    if not found:
        raise UsageError(f"data.leval: {file} holds no question")
    return tuple(found)


def _document(line: str, where: str, number: int, component: str) -> list[Question]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}") from None
    missing = [key for key in _KEYS if not isinstance(data, dict) or key not in data]
    if missing:
        raise UsageError(f"{where}: has no {', '.join(missing)}", "give L-Eval's own file")
    text, asked, gold = (data[key] for key in _KEYS)
    lists = isinstance(asked, list) and isinstance(gold, list) and len(asked) == len(gold)
    if not isinstance(text, str) or not lists:
        raise UsageError(f"{where}: instructions and outputs are not lists of one length")
    rule = letters_score if component == "coursera" else truth_score
    made = []
    for instruction, answer in zip(asked, gold, strict=True):
        try:
            rule("", str(answer))
        except ValueError as error:
            raise UsageError(f"{where}: {error}", "give L-Eval's own file") from None
        made.append(Question(number, text, str(instruction), str(answer)))
    return made


def _fitting(preamble: str, text: str, length: int, count: Callable[[str], int]) -> str:
    if count(preamble + text) <= length:
        return preamble + text
    words = text.split(" ")

    def draft(n: int) -> str | None:
        cut = preamble + " ".join(words[:n])
        return cut if count(cut) <= length else None

    found = largest(draft, max(1, len(words) // 100), len(words))
    if found is None:
        raise UsageError(
            f"a document of {len(words)} words does not fit a context of {length} tokens",
            "raise gate.length",
        )
    return found
