"""Token-importance signals: each maps one layer to scores (B, H, S); higher means keep.

The signals see the context only; they are the ingredients of press programs and are used on their
own or combined (see :mod:`.transforms`, :mod:`.selection`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from galoop.domains.kv_compression.signals.layer import (
    Layer,
    grouped_logits,
    mean_over_group,
    rotate_half,
)

_TINY = 1e-6


def distinctiveness(layer: Layer, source: str = "keys") -> Tensor:
    """How little a token resembles the mean token: −cos(x_t, mean_s x_s/‖x_s‖).

    On ``keys`` this is KeyDiff (Park et al. 2025, arXiv:2504.15364).
    """
    x = layer.source(source)
    anchor = F.normalize(x, dim=-1).mean(dim=2, keepdim=True)
    return layer.over_heads(-F.cosine_similarity(x, anchor, dim=-1))


def novelty(
    layer: Layer,
    source: str = "keys_pre",
    reduce: str = "max",
    versus: str = "all",
    gap: int = 0,
) -> Tensor:
    """How little a token resembles other tokens: −reduce_{s ∈ N(t)} cos(x_t, x_s).

    Parameters
    ----------
    reduce : {"max", "mean", "top4", "top16"}
        Over the similarities: the largest, the mean, or the mean of the 4 or 16 largest.
    versus : {"all", "earlier", "later"}
        N(t): all other tokens, those before t, or those after t. Tokens without any get 0, the
        score of a token that is orthogonal to all others.
    gap : int
        Neighbours with |t − s| ≤ gap do not count.

    Notes
    -----
    Redundancy by cosine similarity is used to evict in R-KV (Cai et al. 2025, arXiv:2505.24133)
    and, on summaries, as maximal marginal relevance (Carbonell and Goldstein 1998).
    """
    unit = F.normalize(layer.source(source), dim=-1)
    similarity = unit @ unit.transpose(-2, -1)  # (B, H or 1, S, S)
    size = similarity.shape[-1]
    position = torch.arange(size, device=similarity.device)
    offset = position.unsqueeze(0) - position.unsqueeze(1)  # s − t
    excluded = offset.abs() <= gap
    if versus == "earlier":
        excluded = excluded | (offset > 0)
    elif versus == "later":
        excluded = excluded | (offset < 0)
    elif versus != "all":
        raise ValueError(f"versus is {versus!r}, one of all, earlier, later")
    alone = excluded.all(dim=-1)
    if reduce == "mean":
        count = (~excluded).sum(dim=-1).clamp_min(1)
        value = similarity.masked_fill(excluded, 0.0).sum(dim=-1) / count
    elif reduce == "max":
        value = similarity.masked_fill_(excluded, -1.0).amax(dim=-1)
    else:
        width = {"top4": 4, "top16": 16}[reduce]
        top = similarity.masked_fill_(excluded, -1.0).topk(min(width, size), dim=-1).values
        value = top.mean(dim=-1)
    return layer.over_heads(-value.masked_fill(alone, 0.0))


def leverage(layer: Layer, source: str = "keys_pre", ridge: float = 0.01) -> Tensor:
    """Ridge leverage of a token: x_tᵀ (XᵀX + λI)⁻¹ x_t on centred x, λ = ridge · tr(XᵀX)/D.

    Exact and deterministic, where Compactor (Chari and Van Durme 2025, arXiv:2507.08143) sketches
    the channels with a random projection.
    """
    x = layer.source(source)
    x = x - x.mean(dim=2, keepdim=True)
    gram = x.transpose(-2, -1) @ x
    dim = gram.shape[-1]
    scale = gram.diagonal(dim1=-2, dim2=-1).mean(dim=-1).clamp_min(_TINY)
    eye = torch.eye(dim, device=gram.device)
    factor = torch.linalg.cholesky(gram + (ridge * scale)[..., None, None] * eye)
    solved = torch.cholesky_solve(x.transpose(-2, -1), factor)
    return layer.over_heads((x * solved.transpose(-2, -1)).sum(dim=-1).clamp_min(0.0))


def norm(layer: Layer, source: str = "values") -> Tensor:
    """‖x_t‖₂; negate it to keep small norms (as for keys in Devoto et al. 2024,
    arXiv:2406.11430)."""
    return layer.over_heads(layer.source(source).norm(dim=-1))


def output_norm(layer: Layer) -> Tensor:
    """‖W_O v_t‖₂ averaged over the query heads of a group: what a token can add to the residual.

    CriticalKV (Feng et al. 2025, arXiv:2502.03805) uses the L1 norm.
    """
    values = layer.values
    heads, dim = values.shape[1], values.shape[-1]
    weight = layer.module.o_proj.weight.float()
    weight = weight.view(weight.shape[0], heads, -1, dim)  # (hidden, H, G, D)
    gram = torch.einsum("xhgi,xhgj->hgij", weight, weight)
    squared = torch.einsum("bhsi,hgij,bhsj->bhgs", values, gram, values)
    return squared.clamp_min(0.0).sqrt().mean(dim=2)


def received_attention(layer: Layer, reduce: str = "mean", gap: int = 0) -> Tensor:
    """Attention that later tokens pay to a token, over queries at least ``gap`` tokens later.

    Parameters
    ----------
    reduce : {"sum", "mean", "max"}
        Over the queries; ``mean`` divides by how many of them can see the token. ``sum`` with gap
        0 is H2O's score (Zhang et al. 2023, arXiv:2306.14048).
    gap : int
        Tokens that no query sees from that far get 0.
    """
    if reduce not in ("sum", "mean", "max"):
        raise ValueError(f"reduce is {reduce!r}, one of sum, mean, max")
    batch, n_queries = layer.queries.shape[:2]
    size, heads = layer.keys.shape[2], layer.keys.shape[1]
    score = torch.zeros(batch, n_queries, size, device=layer.keys.device)
    for start, weights in layer.causal_attention():
        stop = weights.shape[-1]
        if gap > 0:
            far = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device)
            weights = weights.masked_fill_(~far.tril(start - gap), 0.0)
        if reduce == "max":
            score[..., :stop] = torch.maximum(score[..., :stop], weights.amax(dim=-2))
        else:
            score[..., :stop] += weights.sum(dim=-2)
    if reduce == "mean":
        position = torch.arange(size, device=score.device)
        score = score / (size - gap - position).clamp_min(1)
    return mean_over_group(score, heads)


def window_attention(layer: Layer, window: int = 32) -> Tensor:
    """Mean attention that the last ``window`` tokens pay to a token.

    As SnapKV (Li et al. 2024, arXiv:2404.14469), but the window's own tokens are scored like all
    others; guard them with :func:`.transforms.guard`.
    """
    queries = layer.last_queries(window)
    size, width = layer.keys.shape[2], queries.shape[2]
    logits = grouped_logits(queries, layer.keys) / math.sqrt(layer.keys.shape[-1])
    future = torch.ones(width, size, dtype=torch.bool, device=logits.device)
    weights = logits.masked_fill_(future.triu(size - width + 1), float("-inf")).softmax(dim=-1)
    return mean_over_group(weights.mean(dim=-2), layer.keys.shape[1])


def chunk_attention(layer: Layer, chunk: int = 256, by_value: bool = True) -> Tensor:
    """Non-causal attention received within a token's chunk, without the 1/√D (sharper).

    Column sums of softmax(QKᵀ) per chunk of ``chunk`` tokens, averaged over the group and, with
    ``by_value``, times ‖v‖: the attention part of Compactor (arXiv:2507.08143). The last chunk
    counts only real tokens; its sums are rescaled to the length of a full chunk.
    """
    size = layer.keys.shape[2]
    parts = []
    for start in range(0, size, chunk):
        stop = min(start + chunk, size)
        logits = grouped_logits(layer.queries[:, :, start:stop], layer.keys[:, :, start:stop])
        received = logits.softmax(dim=-1).sum(dim=-2)
        parts.append(received * (min(chunk, size) / (stop - start)))
    score = mean_over_group(torch.cat(parts, dim=-1), layer.keys.shape[1])
    return score * layer.values.norm(dim=-1) if by_value else score


def expected_attention(
    layer: Layer, future: int = 512, covariance: bool = True, by_value: bool = True, skip: int = 4
) -> Tensor:
    """Attention that queries at the next ``future`` positions are expected to pay.

    With mean μ and covariance Σ of the context's pre-RoPE queries (the first ``skip`` left out),
    rotated by the mean rotation of the future positions: softmax(kᵀμ/√D + kᵀΣk/2D), averaged over
    the group, times ‖v‖. Devoto et al. 2025 (arXiv:2510.00636).
    """
    keys, size, dim = layer.keys, layer.keys.shape[2], layer.keys.shape[-1]
    queries = layer.queries_pre[:, :, min(skip, size - 1) :]
    mean = queries.mean(dim=2)  # (B, Q, D)
    position = torch.arange(size, size + future, device=keys.device).unsqueeze(0)
    cos, sin = layer.module.rotary_emb(keys, position)
    cos, sin = cos[0].float().mean(dim=0), sin[0].float().mean(dim=0)
    rotation = (
        torch.diag(cos) + sin.unsqueeze(1) * rotate_half(torch.eye(dim, device=keys.device)).T
    )
    mean = mean @ rotation.T
    batch, heads = keys.shape[:2]
    grouped = mean.view(batch, heads, -1, dim)
    logits = grouped @ keys.transpose(-2, -1) / math.sqrt(dim)  # (B, H, G, S)
    if covariance:
        centred = queries - queries.mean(dim=2, keepdim=True)
        spread = centred.transpose(-2, -1) @ centred / centred.shape[2]
        spread = (rotation @ spread @ rotation.T).view(batch, heads, -1, dim, dim)
        product = keys.unsqueeze(2) @ spread  # (B, H, G, S, D)
        logits = logits + (product * keys.unsqueeze(2)).sum(dim=-1) / (2 * dim)
    score = logits.softmax(dim=-1).mean(dim=2)
    return score * layer.values.norm(dim=-1) if by_value else score


def repeat_attention(layer: Layer, reduce: str = "max", by_value: bool = False) -> Tensor:
    """Attention that the context's own queries would pay to it if the context came again.

    The queries of the prefill are rotated on by S positions and attend to all keys of the context
    (softmax(QKᵀ/√D), nothing masked); reduced over queries and over the group by ``max`` or
    ``mean``; with ``by_value`` times ‖v‖. A one-pass approximation of KVzip (Kim et al. 2025,
    arXiv:2505.23416), which runs the model over a repetition of the context.
    """
    keys, size, dim = layer.keys, layer.keys.shape[2], layer.keys.shape[-1]
    position = torch.arange(size, 2 * size, device=keys.device).unsqueeze(0)
    cos, sin = (part.float().unsqueeze(1) for part in layer.module.rotary_emb(keys, position))
    queries = layer.queries_pre * cos + rotate_half(layer.queries_pre) * sin
    if reduce not in ("max", "mean"):
        raise ValueError(f"reduce is {reduce!r}, one of max, mean")
    score = torch.zeros(*queries.shape[:3], device=keys.device)
    for start in range(0, size, 128):
        logits = grouped_logits(queries[:, :, start : start + 128], keys).mul_(dim**-0.5)
        weights = logits.softmax(dim=-1)
        if reduce == "max":
            score = torch.maximum(score, weights.amax(dim=-2))
        else:
            score += weights.sum(dim=-2) / size
    if reduce == "max":
        score = score.view(score.shape[0], keys.shape[1], -1, size).amax(dim=2)
    else:
        score = mean_over_group(score, keys.shape[1])
    return score * layer.values.norm(dim=-1) if by_value else score


def surprise(
    layer: Layer, width: int = 8, versus: str = "before", source: str = "hidden"
) -> Tensor:
    """How far a token is from its neighbourhood: 1 − cos(x_t, mean of its neighbours).

    Parameters
    ----------
    width : int
        How many neighbours on a side; 0 means all there are.
    versus : {"before", "around"}
        The tokens before t, or on both sides. A token without neighbours gets 1.
    """
    x = F.normalize(layer.source(source), dim=-1)
    size = x.shape[2]
    total = F.pad(x.cumsum(dim=2), (0, 0, 1, 0))  # total[t] = sum of x[:t]
    position = torch.arange(size, device=x.device)
    reach = width if width > 0 else size
    low = (position - reach).clamp_min(0)
    high = position if versus == "before" else (position + reach + 1).clamp_max(size)
    if versus not in ("before", "around"):
        raise ValueError(f"versus is {versus!r}, one of before, around")
    around = total[:, :, high] - total[:, :, low]
    if versus == "around":
        around = around - x
    return layer.over_heads(1.0 - F.cosine_similarity(x, around, dim=-1))


def lag(layer: Layer, size: int = 64) -> Tensor:
    """Spread of a token over its channels after scaling by the range of the next block.

    Blocks of ``size`` tokens; per channel (x − min)/(max − min) with the minimum and maximum of
    the block that follows (the last block takes the one before it); the standard deviation over
    channels, softmax in the block, summed over keys and values. LagKV (Liang et al. 2025,
    arXiv:2504.04704).
    """
    total = layer.keys.shape[2]
    starts = list(range(0, total, size))
    if len(starts) > 1 and total - starts[-1] < 2:  # a block of one token has no range
        starts.pop()
    bounds = [*starts, total]
    parts = []
    for i in range(len(starts)):
        j = i + 1 if i + 1 < len(starts) else max(0, i - 1)
        block = slice(bounds[i], bounds[i + 1])
        reference = slice(bounds[j], bounds[j + 1])
        parts.append(
            _spread(layer.keys, block, reference) + _spread(layer.values, block, reference)
        )
    return torch.cat(parts, dim=-1)


def _spread(x: Tensor, block: slice, reference: slice) -> Tensor:
    low = x[:, :, reference].amin(dim=2, keepdim=True)
    high = x[:, :, reference].amax(dim=2, keepdim=True)
    scaled = (x[:, :, block] - low) / (high - low).clamp_min(_TINY)
    return scaled.std(dim=-1).softmax(dim=-1)


def recency(layer: Layer) -> Tensor:
    """Position of a token, from 0 (first) to 1 (last)."""
    size = layer.keys.shape[2]
    score = torch.linspace(0.0, 1.0, size, device=layer.keys.device)
    return layer.over_heads(score.expand(layer.keys.shape[0], 1, size))


def press_score(layer: Layer, press: Any) -> Tensor:
    """The score of a kvpress ``ScorerPress``.

    Some presses cannot score a context of few tokens (64 or less); they give 0 there.
    """
    size = layer.keys.shape[2]
    try:
        score = press.score(
            layer.module, layer._hidden_states, layer._keys, layer._values, None, layer.kwargs
        )
    except (AssertionError, RuntimeError, IndexError):
        if size > 64:
            raise
        score = torch.zeros_like(layer._keys[..., 0])
    return torch.nan_to_num(score.float())
