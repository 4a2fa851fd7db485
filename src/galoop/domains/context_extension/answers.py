"""What a model says to one prompt: greedy answers, and likelihoods of given continuations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from galoop.domains.text.decoding.stopping import ended

#: Least distance of the two best logits for a token that was decided together with a draft. One
#: pass over many tokens rounds otherwise than a pass a token (up to 0.4 seen in bfloat16).
MARGINS = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}


@dataclass(frozen=True)
class Answer:
    """What was answered.

    Attributes
    ----------
    tokens : list of int
        The stop token included where it was generated.
    agreement : float or None
        Share of the draft's tokens that are each the arg-max after the right ones before it.
    """

    tokens: list[int]
    agreement: float | None = None


def answer(
    model: Any, prompt: Sequence[int], draft: Sequence[int], most: int, stop: frozenset[int]
) -> Answer:
    """Continue a prompt greedily.

    Parameters
    ----------
    model : PreTrainedModel
        As it is, or under a position method.
    prompt : sequence of int
    draft : sequence of int
        A guess of the answer. It changes the speed and never the answer: it is accepted while it
        equals the arg-max by a margin, and where a decision is closer all is decoded again, token
        by token.
    most : int
        Length of the answer.
    stop : set of int
        Tokens that end an answer, except in the first place (as in kvpress's pipeline).
    """
    import torch
    from transformers import DynamicCache

    guess = list(draft)[: most - 1]
    cache = DynamicCache()
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *guess]], device=model.device)
        out = model(input_ids=ids, past_key_values=cache, logits_to_keep=len(guess) + 1)
        best = out.logits[0].float().topk(2, dim=-1)
        decided = best.indices[:, 0].tolist()
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        same = sum(t == d for t, d in zip(decided, guess, strict=False))
        agreement = same / len(guess) if guess else None
        tokens: list[int] = []
        sure = True
        for n, token in enumerate(decided):
            sure &= gaps[n] >= MARGINS.get(str(model.dtype).removeprefix("torch."), 0.5)
            tokens.append(token)
            if ended(tokens, most, stop) or n == len(guess) or token != guess[n]:
                break
        if guess and not sure:
            cache, tokens = DynamicCache(), []
            ids = torch.tensor([list(prompt)], device=model.device)
            out = model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
            tokens.append(int(out.logits[0, -1].argmax()))
        else:
            cache.crop(len(prompt) + len(tokens) - 1)
        while not ended(tokens, most, stop):
            ids = torch.tensor([tokens[-1:]], device=model.device)
            out = model(input_ids=ids, past_key_values=cache)
            tokens.append(int(out.logits[0, -1].argmax()))
    return Answer(tokens, agreement)


def mean_nll(model: Any, prompt: Sequence[int], gold: Sequence[int]) -> float:
    """Mean negative log-likelihood of a continuation, in nats a token.

    Parameters
    ----------
    model : PreTrainedModel
        As it is, or under a position method.
    prompt, gold : sequence of int
        All of ``gold`` is scored, each token given everything before it.
    """
    import torch

    ids = torch.tensor([[*prompt, *gold[:-1]]], device=model.device)
    with torch.inference_mode():
        out = model(input_ids=ids, use_cache=False, logits_to_keep=len(gold))
        wanted = torch.tensor(list(gold), device=model.device)
        return float(torch.nn.functional.cross_entropy(out.logits[0].float(), wanted))
