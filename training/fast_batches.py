"""Batches of token ids with a mask of the positions that count.

Three sources, in the order of the curriculum: copies of segments, records of random tokens, and
the documents of :mod:`fast_text`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from fast_text import Document, TextConfig, Words, make_document

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BOS, EOS, PAD = 0, 1, 2
FIRST_BYTE = 3
Row = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Batch:
    """Token ids (B, T) and the mask (B, T) of the tokens that must be predicted."""

    ids: torch.Tensor
    mask: torch.Tensor


def stack(rows: Sequence[Row]) -> Batch:
    """Pad on the right; causal attention never sees the padding from the left."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row, _ in rows])
    mask = torch.tensor([row + [0] * (width - len(row)) for _, row in rows], dtype=torch.bool)
    return Batch(ids, mask)


def copy_row(rng: random.Random, vocab: int, length: int) -> Row:
    """Random tokens, then segments of 4 to 11 tokens copied from random places of the first half.

    Random places matter: copies at one fixed distance are learned by position and do not transfer.
    """
    source = [rng.randrange(FIRST_BYTE, vocab) for _ in range(length // 2)]
    ids, mask = list(source), [0] * len(source)
    while len(ids) < length:
        n = rng.randint(4, 11)
        start = rng.randrange(0, len(source) - n + 1)
        ids += source[start : start + n]
        mask += [0] + [1] * (n - 1)
    return ids[:length], mask[:length]


def record_row(rng: random.Random, vocab: int, digits: Sequence[int], length: int) -> Row:
    """Records ``before key between value`` of random tokens that differ in key and value only.

    The last tokens before a value are the same in all records, so that the value can only be
    found by what stood several tokens earlier, as in text.
    """

    def some(least: int, most: int) -> list[int]:
        return [rng.randrange(FIRST_BYTE, vocab) for _ in range(rng.randint(least, most))]

    before, between, tail = some(0, 3), some(0, 5), some(1, 1)
    use_digits = rng.random() < 0.6
    records: list[tuple[list[int], list[int]]] = []
    ids: list[int] = []
    while len(ids) < length * 0.55:
        key = some(1, 3)
        value = [rng.choice(digits) for _ in range(rng.randint(2, 5))] if use_digits else some(1, 4)
        records.append((key, value))
        ids += before + key + between + value + tail
        if rng.random() < 0.3:
            ids += some(1, 8)
    mask = [0] * len(ids)
    rng.shuffle(records)
    for key, value in records:
        question = before + key + between
        ids += question + value + tail
        mask += [0] * len(question) + [1] * (len(value) + 1)
    return ids[:length], mask[:length]


def encode_documents(
    tokenizer: Tokenizer, documents: Sequence[Document], length: int
) -> list[list[Row]]:
    """Per document, one row a query set: the context (at most ``length`` tokens), then the queries.

    The pieces are encoded one by one, as kvpress's pipeline does for a model without a chat
    template: ``bos + context``, then ``question + "\\n" + prefix``, then the answer.
    """
    texts: list[str] = []
    for document in documents:
        texts += document.pieces
        for query in document.queries:
            texts += [f"{query.question}\n{query.prefix}", f"{query.value}."]
    encoded = iter([e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)])
    result = []
    for document in documents:
        pieces = [next(encoded) for _ in document.pieces]
        pairs = [(next(encoded), [*next(encoded), EOS]) for _ in document.queries]
        result.append(_rows(pieces, document.is_record, pairs, length))
    return result


def _rows(
    pieces: Sequence[list[int]],
    is_record: Sequence[bool],
    pairs: Sequence[tuple[list[int], list[int]]],
    length: int,
) -> list[Row]:
    room = length - 1 - sum(len(p) for p, kept in zip(pieces, is_record, strict=True) if kept)
    context = [BOS]
    for piece, kept in zip(pieces, is_record, strict=True):
        if not kept:
            if len(piece) > room:
                continue
            room -= len(piece)
        context += piece
    rows = []
    for question, answer in pairs:
        rows.append((question + answer, [0] * len(question) + [1] * len(answer)))
    return [(context, [0] * len(context)), *rows]


def text_batch(
    rng: random.Random,
    tokenizer: Tokenizer,
    words: Words,
    config: TextConfig,
    *,
    size: int,
    length: int,
    window: int,
) -> Batch:
    """Documents of at most ``length`` context tokens, each followed by its queries.

    Queries that would pass the window are left out, so that no position beyond it is trained.
    """
    documents = [make_document(rng, words, config) for _ in range(size)]
    rows: list[Row] = []
    for parts in encode_documents(tokenizer, documents, length):
        row: Row = ([], [])
        for ids, mask in parts:
            if len(row[0]) + len(ids) <= window:
                row = (row[0] + ids, row[1] + mask)
        rows.append(row)
    return stack(rows)
