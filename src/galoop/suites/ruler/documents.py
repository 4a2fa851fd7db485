"""Questions among documents: qa_1 (SQuAD) and qa_2 (HotpotQA), from a user's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from galoop.errors import UsageError
from galoop.suites.ruler.task import Draft, stream


@dataclass(frozen=True)
class Asked:
    """A question with its gold answers and the documents that belong to it.

    ``own`` have to be in the context; ``near`` (SQuAD: other paragraphs of the same article) are
    the first to be added.
    """

    question: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Data:
    """All documents of a file, without repetition, and its questions."""

    documents: tuple[str, ...]
    questions: tuple[Asked, ...]


@dataclass(frozen=True)
class DocumentQuestion:
    """One question, the documents that answer it, and distractors; a unit is one distractor.

    Parameters
    ----------
    name : str
    file : Path
    kind : {"squad", "hotpotqa"}
    """

    name: str
    file: Path
    kind: Literal["squad", "hotpotqa"]
    fewest_units: int = 0
    max_new_tokens: int = 32

    @property
    def data(self) -> Data:
        """What the file holds; read once."""
        return _read(self.file, self.kind)

    @property
    def most_units(self) -> int:
        """Every document that there is."""
        return max(1, len(self.data.documents) - 1)

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example; see :class:`galoop.suites.ruler.task.Task`."""
        data = self.data
        asked = stream(seed, "question").choice(data.questions)
        rng = stream(seed, "distractors")
        own = set(asked.own)
        order = [i for i in asked.near if i not in own]
        rng.shuffle(order)
        taken = {*own, *order}
        while len(order) < units and len(taken) < len(data.documents):
            other = rng.randrange(len(data.documents))
            if other not in taken:
                taken.add(other)
                order.append(other)
        shown = [*asked.own, *order[:units]]
        stream(seed, "order").shuffle(shown)
        listed = "\n\n".join(
            f"Document {number}:\n{data.documents[i]}" for number, i in enumerate(shown, start=1)
        )
        return Draft(
            context=f"Answer the question after these documents from them. Give the answer and "
            f"nothing else.\n\n{listed}",
            question=f"\n\nQuestion: {asked.question}",
            answer_prefix="Answer:",
            answers=asked.answers,
            evidence=tuple(data.documents[i] for i in asked.own),
        )

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form."""
        return {
            "form": "ruler",
            "source": self.kind,
            "questions": len(self.data.questions),
            "documents": len(self.data.documents),
        }


@lru_cache(maxsize=2)
def _read(file: Path, kind: str) -> Data:
    where = f"data.{kind}: {file}"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error}") from None
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    try:
        data = _squad(raw) if kind == "squad" else _hotpotqa(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{where} has not the form of {kind}: {type(error).__name__}: {error}",
            "give SQuAD's dev-v2.0.json, or HotpotQA's hotpot_dev_distractor_v1.json",
        ) from None
    if not data.questions:
        raise UsageError(f"{where} holds no question that has an answer")
    return data


def _squad(raw: Any) -> Data:
    """SQuAD 2.0: questions that can be answered; the paragraph, and the article's other ones."""
    documents: dict[str, int] = {}
    found = []
    for article in raw["data"]:
        paragraphs = [p["context"] for p in article["paragraphs"]]
        near = tuple(documents.setdefault(text, len(documents)) for text in paragraphs)
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                answers = tuple(dict.fromkeys(a["text"] for a in qa["answers"]))
                if answers and not qa.get("is_impossible", False):
                    own = (documents[paragraph["context"]],)
                    found.append(Asked(qa["question"], answers, own, near))
    return Data(tuple(documents), tuple(found))


def _hotpotqa(raw: Any) -> Data:
    """HotpotQA: all ten paragraphs that come with a question belong to it, as in RULER."""
    documents: dict[str, int] = {}
    found = []
    for item in raw:
        texts = [f"{title}\n{''.join(sentences)}" for title, sentences in item["context"]]
        own = tuple(dict.fromkeys(documents.setdefault(t, len(documents)) for t in texts))
        found.append(Asked(item["question"], (item["answer"],), own))
    return Data(tuple(documents), tuple(found))
