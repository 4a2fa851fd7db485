"""RULER's thirteen tasks, generated at the length that is asked for.

Six need no data. The others read a user's own: essays (niah_single_2 and 3, niah_multikey_1,
niah_multivalue, niah_multiquery), SQuAD (qa_1) and HotpotQA (qa_2).

Source: Hsieh et al., *RULER: What's the Real Context Size of Your Long-Context Language Models?*
(arXiv 2404.06654). The constructions, parameters, answer lengths and the score are RULER's; the
prompts say the same in other words, and a few draws are stricter (see each task). Figures are
therefore comparable in construction, not prompt for prompt. ``length`` bounds the context alone,
the part that is compressed, where RULER's bounds prompt and answer together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from galoop.errors import UnknownNameError, UsageError
from galoop.hashing import derive_seed
from galoop.suites.fitting import largest
from galoop.suites.ruler.counting import CommonWords, FrequentWords
from galoop.suites.ruler.documents import DocumentQuestion
from galoop.suites.ruler.essays import EssayNeedles
from galoop.suites.ruler.needles import Needle
from galoop.suites.ruler.task import Draft, Task
from galoop.suites.ruler.tracking import VariableTracking
from galoop.types import Example

CountTokens = Callable[[str], int]

#: In RULER's order, and the key of ``[data]`` that each of them reads.
_READS: Mapping[str, str] = {
    "niah_single_1": "",
    "niah_single_2": "essays",
    "niah_single_3": "essays",
    "niah_multikey_1": "essays",
    "niah_multikey_2": "",
    "niah_multikey_3": "",
    "niah_multivalue": "essays",
    "niah_multiquery": "essays",
    "vt": "",
    "cwe": "",
    "fwe": "",
    "qa_1": "squad",
    "qa_2": "hotpotqa",
}
_LONG = 4096  # RULER repeats words more often from here on
_REFERENCE_DRAWS = 8
_MOST_ATTEMPTS = 20


def forms(component: str, length: int) -> Sequence[Task]:
    """The forms of an offline component, RULER's own first, then reduced ones."""
    if component == "niah_single_1":
        return [Needle(component, "noise", "words", "numbers", fewest_units=2)]
    if component == "niah_multikey_2":
        return [Needle(component, "needles", "words", "numbers", fewest_units=3)]
    if component == "niah_multikey_3":
        return [Needle(component, "needles", "uuids", "uuids", fewest_units=1)]
    if component == "vt":
        return [VariableTracking(worked_sentences=size) for size in (75, 25, 10, 0, None)]
    if component == "cwe":
        if length >= _LONG:
            return [CommonWords(10, 30, 3, 10, 30, 3)]
        return [
            CommonWords(),
            *(CommonWords(c, worked_rare_words=c, form="reduced") for c in (8, 5, 3)),
            CommonWords(3, worked_rare_words=None, form="reduced"),
        ]
    if component == "fwe":
        return [FrequentWords(vocabulary=max(5, length // 50))]
    raise UnknownNameError(
        f"RULER has no component {component!r} here", f"components: {', '.join(_READS)}"
    )


def _among_essays(component: str, essays: Path) -> Task:
    if component == "niah_single_2":
        return EssayNeedles(component, essays)
    if component == "niah_single_3":
        return EssayNeedles(component, essays, "uuids")
    if component == "niah_multikey_1":
        return EssayNeedles(component, essays, keys=4)
    if component == "niah_multivalue":
        return EssayNeedles(component, essays, values=4)
    return EssayNeedles(component, essays, keys=4, queries=4)


@dataclass(frozen=True)
class Ruler:
    """RULER: six tasks of thirteen as they come, the others with your data (essays, SQuAD, …).

    Parameters
    ----------
    essays, squad, hotpotqa : Path, optional
        The user's data; without them the components that need them are not there.
    max_new_tokens : int, optional
        Cap on the answer's length, for small models; RULER's own lengths (niah 128, vt 30,
        cwe 120, fwe 50) otherwise.
    window : int, optional
        Most tokens of context, question, answer prefix and answer together. Give the model's
        window less its chat template, and contexts become shorter where they have to.
    """

    max_new_tokens: int | None = None
    window: int | None = None
    name: str = "ruler"
    essays: Path | None = None
    squad: Path | None = None
    hotpotqa: Path | None = None

    takes: ClassVar[tuple[str, ...]] = ("essays", "squad", "hotpotqa")

    def components(self) -> tuple[str, ...]:
        """Names of the components whose data are there, in RULER's order."""
        return tuple(name for name, key in _READS.items() if not key or getattr(self, key))

    def missing(self) -> Mapping[str, str]:
        """Components whose data were not given, and what to give."""
        return {
            name: f"it reads your own data: set data.{key}"
            for name, key in _READS.items()
            if key and not getattr(self, key)
        }

    def build(
        self,
        component: str,
        n: int,
        seed: int,
        length: int,
        count_tokens: CountTokens,
    ) -> list[Example]:
        """Generate ``n`` examples; see :meth:`galoop.suites.Suite.build`.

        An example depends on (component, seed, its index, length, tokenizer) alone.
        """
        if n < 1:
            raise UsageError(f"{n} examples of {component} were asked for", "ask for at least one")
        task = self._form(component, length, count_tokens)
        return [self._example(task, seed, i, length, count_tokens) for i in range(n)]

    def parameters(
        self, component: str, length: int, count_tokens: CountTokens
    ) -> Mapping[str, Any]:
        """The parameters of the form that :meth:`build` takes at that length.

        ``form`` is ``ruler``, or ``reduced`` where RULER's own does not fit.
        """
        task = self._form(component, length, count_tokens)
        return {**task.parameters(), "max_new_tokens": self._new_tokens(task), "length": length}

    def _forms(self, component: str, length: int) -> Sequence[Task]:
        lacking = self.missing().get(component)
        if lacking is not None:
            raise UnknownNameError(f"RULER's {component} cannot be built: {lacking}")
        key = _READS.get(component, "")
        path = getattr(self, key) if key else None
        if path is None:
            return forms(component, length)
        if key == "essays":
            return [_among_essays(component, path)]
        return [DocumentQuestion(component, path, "squad" if key == "squad" else "hotpotqa")]

    def _form(self, component: str, length: int, count: CountTokens) -> Task:
        """The first form whose smallest haystack fits.

        Judged on fixed draws, so that neither seed nor n decides about the form.
        """
        needed = 0
        for task in self._forms(component, length):
            excess = [
                self._excess(
                    task, task.draft(derive_seed("ruler", i), task.fewest_units), length, count
                )
                for i in range(_REFERENCE_DRAWS)
            ]
            if max(excess) <= 0:
                return task
            needed = length + max(excess)
        raise UsageError(
            f"RULER's {component} does not fit a context of {length} tokens"
            + ("" if self.window is None else f" in a window of {self.window}"),
            f"the smallest workable length is about {needed} tokens with this tokenizer"
            + ("" if self.window is None else ", in a window that is larger by as much"),
        )

    def _example(
        self, task: Task, seed: int, index: int, length: int, count: CountTokens
    ) -> Example:
        for attempt in range(_MOST_ATTEMPTS):
            own_seed = derive_seed("ruler", task.name, seed, index, attempt)
            draft = self._fit(task, own_seed, length, count)
            if draft is not None:
                return Example(
                    context=draft.context,
                    question=draft.question,
                    answers=draft.answers,
                    answer_prefix=draft.answer_prefix,
                    evidence=draft.evidence,
                    seed=own_seed,
                    max_new_tokens=self._new_tokens(task),
                    scoring="any" if isinstance(task, DocumentQuestion) else "fraction",
                )
        raise UsageError(
            f"RULER's {task.name} hardly fits a context of {length} tokens",
            "use a length that is a tenth larger",
        )

    def _fit(self, task: Task, seed: int, length: int, count: CountTokens) -> Draft | None:
        """The draft with the largest haystack that fits, or None; by bisection."""

        def draft_if_fits(units: int) -> Draft | None:
            draft = task.draft(seed, units)
            return draft if self._excess(task, draft, length, count) <= 0 else None

        return largest(draft_if_fits, task.fewest_units, task.most_units)

    def _excess(self, task: Task, draft: Draft, length: int, count: CountTokens) -> int:
        """Tokens by which a draft is too long; negative if there is room."""
        size = count(draft.context)
        excess = size - length
        if self.window is not None:
            asked = count(draft.question) + count(draft.answer_prefix) + self._new_tokens(task)
            excess = max(excess, size + asked - self.window)
        return excess

    def _new_tokens(self, task: Task) -> int:
        cap = self.max_new_tokens
        return task.max_new_tokens if cap is None else min(task.max_new_tokens, cap)
