"""The text encoder of the small video model: words of its language to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from galoop.domains.sparse_video.prompts import MOST_WORDS, vocabulary, words_of
from galoop.errors import UsageError

if TYPE_CHECKING:
    import torch

PADDING = 0
"""The id of padding; a prompt of padding alone is the empty prompt of guidance."""


def encode_words(prompts: Sequence[str]) -> torch.Tensor:
    """Prompts as word ids, int [N, MOST_WORDS], padded; an empty prompt is all padding.

    Raises
    ------
    UsageError
        Naming the first word that the model does not know, or a prompt that is too long.
    """
    import torch

    known = {word: index + 1 for index, word in enumerate(vocabulary())}
    ids = torch.full((len(prompts), MOST_WORDS), PADDING, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        words = words_of(prompt)
        unknown = [word for word in words if word not in known]
        if unknown:
            raise UsageError(
                f"the video model does not know {unknown[0][:60]!r} in {prompt[:200]!r}",
                f"its words are: {' '.join(vocabulary())}",
            )
        if len(words) > MOST_WORDS:
            raise UsageError(f"a prompt of {len(words)} words", f"at most {MOST_WORDS} fit")
        for place, word in enumerate(words):
            ids[row, place] = known[word]
    return ids


def build_text_encoder(width: int, layers: int, heads: int = 4) -> Any:
    """A small bidirectional transformer over words, trained along with the video transformer.

    Parameters
    ----------
    width : int
        Channels of the vectors; the video transformer's ``text_dim``.
    layers, heads : int

    Returns
    -------
    torch.nn.Module
        Word ids [N, T] → [N, T, width]. Padding is a word like any other: Wan's cross-attention has
        no mask.
    """
    import torch

    class TextEncoder(torch.nn.Module):
        """Embeddings of words and places, then a transformer encoder."""

        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(len(vocabulary()) + 1, width)
            self.places = torch.nn.Parameter(torch.randn(MOST_WORDS, width) * 0.02)
            layer = torch.nn.TransformerEncoderLayer(
                width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True,
                norm_first=True,
            )  # fmt: skip
            self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.norm = torch.nn.LayerNorm(width)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            """Word ids to vectors."""
            found: torch.Tensor = self.norm(self.layers(self.words(ids) + self.places))
            return found

    return TextEncoder()
