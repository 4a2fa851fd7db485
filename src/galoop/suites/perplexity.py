"""Perplexity over sliding windows, the continuation teacher-forced.

As in work on long contexts (Press et al., arXiv 2108.12409; An et al., arXiv 2402.17463): windows
of the whole length begin every 256 tokens of each text. There the loss is averaged over the whole
window. Here an approximation acts on a context that has been read, so the loss is that of the
window's last tokens, given the rest of it: ``context`` is compressed, a few words after it (the
``question``) are read uncompressed, and the tokens after these are scored. Figures are therefore
comparable between systems here and not with published ones.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from galoop.errors import UnknownNameError, UsageError
from galoop.hashing import derive_seed
from galoop.suites.material import stream
from galoop.suites.prose import generated_sentences, read_text, text_files
from galoop.types import Example

_PIECE = re.compile(r"\s*\S+")
_LEAST_LENGTH = 64
#: Tokens between the compressed context and the first scored token.
_BRIDGE = 8
_GENERATED_SENTENCES = 4000


@dataclass(frozen=True)
class Perplexity:
    """Perplexity on sliding windows of your text (data.text), or of a generated corpus.

    The score of an example is 1 / perplexity of its scored tokens.

    Parameters
    ----------
    text : Path, optional
        A text file or a folder of .txt files, one book each. Its component is ``text``. Without
        it there is ``generated``: sentences made here, which say nothing about real language.
    stride : int
        Tokens from the start of one window to that of the next.
    scored : int
        Most scored tokens of a window, and never more than a quarter of it.
    """

    text: Path | None = None
    stride: int = 256
    scored: int = 64
    name: str = "perplexity"

    takes: ClassVar[tuple[str, ...]] = ("text",)

    def components(self) -> tuple[str, ...]:
        """``text`` where a path was given, else ``generated``."""
        return ("text",) if self.text else ("generated",)

    def missing(self) -> Mapping[str, str]:
        """What ``text`` needs."""
        return {} if self.text else {"text": "set data.text to a text file or a PG19 folder"}

    def build(
        self,
        component: str,
        n: int,
        seed: int,
        length: int,
        count_tokens: Callable[[str], int],
    ) -> list[Example]:
        """Windows in an order that the seed gives, ``n`` of them or all there are.

        The generated corpus depends on the seed and does not run out before some hundred windows.
        """
        self._check(component, n, length)
        found: list[Example] = []
        pieces: dict[str, int] = {}

        def size(piece: str) -> int:
            if piece not in pieces:
                pieces[piece] = count_tokens(piece)
            return pieces[piece]

        books = list(self._books(component, seed))
        stream(seed, "books").shuffle(books)
        per_book = [self._windows(b, seed, length, size, count_tokens) for b in books]
        for round_of_books in itertools.zip_longest(*per_book):
            found += [window for window in round_of_books if window is not None]
            if len(found) >= n:
                break
        if not found:
            raise UsageError(
                f"perplexity: no text is as long as a window of {length} tokens",
                "lower gate.length or give longer text",
            )
        return found[:n]

    def _check(self, component: str, n: int, length: int) -> None:
        if component not in self.components():
            needs = self.missing().get(component, "")
            raise UnknownNameError(
                f"perplexity has no component {component!r} here",
                needs or f"components: {', '.join(self.components())}",
            )
        if n < 1:
            raise UsageError(f"{n} windows were asked for", "ask for at least one")
        if length < _LEAST_LENGTH:
            raise UsageError(
                f"a window of {length} tokens is too short for a perplexity",
                f"the smallest workable length is {_LEAST_LENGTH} tokens",
            )

    def _books(self, component: str, seed: int) -> list[Callable[[], str]]:
        if self.text is not None:
            what = "data.text"
            files = text_files(self.text, what)
            return [lambda file=file: read_text(file, what) for file in files]  # type: ignore[misc]

        def generate(i: int) -> str:
            rng = stream(seed, f"generated book {i}")
            return " ".join(
                " ".join(generated_sentences(rng, 40)) for _ in range(_GENERATED_SENTENCES // 160)
            )

        return [lambda i=i: generate(i) for i in range(4)]  # type: ignore[misc]

    def _windows(
        self,
        book: Callable[[], str],
        seed: int,
        length: int,
        size: Callable[[str], int],
        count: Callable[[str], int],
    ) -> Iterator[Example]:
        """Windows of one book in an order of the seed; the book is read when it is its turn."""
        pieces = _PIECE.findall(book())
        ends = list(itertools.accumulate(size(piece) for piece in pieces))
        total = ends[-1] if ends else 0
        # Tokens of the pieces by themselves: about those of the text, never many fewer.
        starts = [
            bisect_left(ends, token + 1) for token in range(0, total - length + 1, self.stride)
        ]
        stream(seed, "windows").shuffle(starts)
        for start in dict.fromkeys(starts):
            made = self._window(pieces, ends, start, length, count)
            if made is not None:
                yield made

    def _window(
        self,
        pieces: list[str],
        ends: list[int],
        start: int,
        length: int,
        count: Callable[[str], int],
    ) -> Example | None:
        before = ends[start - 1] if start else 0
        stop = bisect_right(ends, before + length)
        while stop > start and count(_join(pieces[start:stop])) > length:
            stop -= 1
        last = ends[stop - 1]
        scored = min(self.scored, length // 4)
        cut = bisect_left(ends, last - scored)
        cut = max(cut + 1, start + 2)
        bridge = max(start + 1, min(cut - 1, bisect_left(ends, ends[cut - 1] - _BRIDGE) + 1))
        context, question, gold = (
            _join(pieces[start:bridge]),
            "".join(pieces[bridge:cut]),
            "".join(pieces[cut:stop]),
        )
        if not gold or not question:
            return None
        return Example(
            context=context,
            question=question,
            answers=(gold,),
            seed=derive_seed("window", context),
            max_new_tokens=count(gold) + 1,
            scoring="likelihood",
        )

    def parameters(
        self, component: str, length: int, count_tokens: Callable[[str], int]
    ) -> Mapping[str, Any]:
        """Window, stride, scored tokens, and which corpus it is."""
        self._check(component, 1, length)
        return {
            "form": "your text" if self.text else "generated corpus",
            "stride": self.stride,
            "scored_tokens": min(self.scored, length // 4),
            "length": length,
        }


def _join(pieces: list[str]) -> str:
    return "".join(pieces).lstrip()
