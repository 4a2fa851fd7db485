"""How likely a system finds a continuation: the gold text fed token by token, nothing generated.

The continuation stays on the trusted side: an artifact makes a cache of the context, and what is
scored is fed to the model here. An artifact that answers by itself, in a process of its own, cannot
be asked for a likelihood without being shown the answer, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from galoop.errors import InfrastructureError, UsageError
from galoop.types import Example, Outcome, State

if TYPE_CHECKING:
    from galoop.domains.text.decoding.packed import CompressedCache

#: Largest mean that is written down; its score is 0 in any case.
_MOST_NATS = 700.0


def plain_prompt(tokenizer: Any, example: Example) -> tuple[list[int], list[int]]:
    """Context ids and question ids of an example that is scored by likelihood.

    Plain text without a chat template: what the tokenizer puts in front of any text (a BOS token,
    where the model has one) comes once, before the context, and nothing at the end.

    Raises
    ------
    UsageError
        An empty context or question: the first scored token follows a token that is read
        uncompressed.
    """
    context = [*beginning(tokenizer), *_ids(tokenizer, example.context)]
    question = _ids(tokenizer, example.question)
    if not context or not question:
        raise UsageError(
            "an example scored by likelihood needs a context and a question (the words before the "
            "continuation)"
        )
    return context, question


def gold_ids(tokenizer: Any, example: Example) -> list[int]:
    """Ids of the continuation, at most ``max_new_tokens``."""
    return _ids(tokenizer, example.answers[0])[: example.max_new_tokens]


def beginning(tokenizer: Any) -> list[int]:
    """The BOS token, if the tokenizer itself begins every text with it."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return []
    with_special: list[int] = tokenizer.encode("a", add_special_tokens=True)
    return [bos] if with_special[:1] == [bos] else []


def check_beginning(tokenizer: Any, context: Sequence[int]) -> None:
    """Refuse a prompt that begins with two BOS tokens.

    A chat template that writes BOS and a tokenizer that adds another one shift every score by an
    amount that nobody asked for.

    Raises
    ------
    InfrastructureError
        Two of them.
    """
    bos = tokenizer.bos_token_id
    if bos is not None and list(context[:2]) == [bos, bos]:
        raise InfrastructureError(
            f"a prompt begins with the token {tokenizer.bos_token!r} twice",
            "the tokenizer adds what its chat template has already written",
        )


def mean_nll(
    model: Any, cache: CompressedCache, question: Sequence[int], gold: Sequence[int]
) -> float:
    """Mean negative log-likelihood of the continuation, in nats a token.

    One row a pass, so that no other row changes a bit of it.

    Parameters
    ----------
    model : PreTrainedModel
    cache : CompressedCache
        Of the context.
    question, gold : sequence of int
        Token ids; all of ``gold`` is scored, given everything before it.
    """
    import torch

    from galoop.domains.text.decoding.packed import Piece, forward
    from galoop.domains.text.decoding.padded import PaddedRows

    fed = [*question, *gold[:-1]]
    with torch.inference_mode():
        block = PaddedRows([cache], len(fed))
        piece = Piece(block.rows[0], fed, 0, wanted=len(gold))
        logits = forward(model, [piece], None, padded=True)
        wanted = torch.tensor(list(gold), device=logits.device)
        return float(torch.nn.functional.cross_entropy(logits.float(), wanted))


def likelihood_outcome(nll: float, n: int, measured: dict[str, float]) -> Outcome:
    """The outcome of a continuation of ``n`` tokens: score exp(-nll), 1 / perplexity."""
    if math.isnan(nll):
        return Outcome(State.INVALID, reason="its cache makes the likelihood no number")
    kept = {**measured, "nll": min(nll, _MOST_NATS), "scored_tokens": float(n)}
    return Outcome(State.SCORED, "", min(1.0, math.exp(-nll)), "", kept)


def refused() -> Outcome:
    """The outcome of an artifact that answers by itself."""
    return Outcome(
        State.INVALID,
        reason="it answers in a process of its own, where a likelihood cannot be measured without "
        "showing it the answer",
    )


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
