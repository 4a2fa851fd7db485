"""On which numbers of tokens the result of a matrix product for one token depends.

A processor's library chooses its kernel by shape, so a token's row of ``x @ W.T`` may be rounded
differently when other tokens share the product. Which numbers of tokens give the same bits is found
out here by trying, once per shape, with inputs whose exact product is zero: what is left is nothing
but rounding, so that any other order of summation shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Numbers of tokens that are tried; one between two of them counts as they do where they agree.
SIZES = (*range(1, 25), 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
_ROWS = 4
#: Multiplications a trial may cost; the vocabulary's wide layer is tried with fewer tokens.
_MOST_WORK = 10**9


class Grouping:
    """How tokens may share the matrix products of one model.

    Parameters
    ----------
    model : PreTrainedModel
        Its linear layers are tried with the number of threads that is set now.
    """

    def __init__(self, model: Any) -> None:
        import torch

        self._classes: dict[tuple[int, int, bool], list[int]] = {}
        self._modules: list[Any] = []
        for module in model.modules():
            if not isinstance(module, torch.nn.Linear):
                continue
            key = _shape(module)
            if key not in self._classes:
                self._classes[key] = size_classes(module.weight, key[2])
            if len(set(self._classes[key])) > 1:
                self._modules.append(module)

    def sensitive(self, model: Any) -> Iterable[Any]:
        """The linear layers whose rows depend on the number of tokens."""
        return self._modules

    def product(self, module: Any, lengths: Sequence[int]) -> Callable[[Any], Any]:
        """A replacement of ``module.forward`` for pieces of these lengths."""
        plan = plan_groups(self._classes[_shape(module)], lengths)
        return partial(_in_groups, module, plan)


def _shape(module: Any) -> tuple[int, int, bool]:
    return (module.out_features, module.in_features, module.bias is not None)


def size_classes(weight: torch.Tensor, bias: bool) -> list[int]:
    """For the first of :data:`SIZES`, the number of the class of sizes that give the same bits."""
    import torch

    out_features, in_features = weight.shape
    tried = [s for s in SIZES if s <= 8 or s * out_features * in_features <= _MOST_WORK]
    generator = torch.Generator().manual_seed(0)
    half = in_features // 2
    order = torch.randperm(2 * half, generator=generator)
    w = torch.zeros(out_features, in_features)
    x = torch.zeros(1, tried[-1], in_features)
    w_half = torch.randn(out_features, half, generator=generator)
    x_half = torch.randn(1, tried[-1], half, generator=generator)
    w[:, order] = torch.cat([w_half, -w_half], dim=-1)
    x[..., order] = torch.cat([x_half, x_half], dim=-1)
    w, x = w.to(weight), x.to(weight)
    b = weight.new_zeros(out_features) if bias else None

    def rows(size: int) -> torch.Tensor:
        return torch.nn.functional.linear(x[:, :size], w, b)[0, :_ROWS]

    classes: list[int] = []
    samples: list[torch.Tensor] = []
    with torch.inference_mode():
        for size in tried:
            if size == 1:
                parts = [torch.nn.functional.linear(x[:, i : i + 1], w, b)[0] for i in range(_ROWS)]
                found = torch.cat(parts)
            else:
                found = rows(size)
            n = found.shape[0]
            same = [c for c, s in enumerate(samples) if torch.equal(s[:n], found[: s.shape[0]])]
            if same:
                classes.append(same[0])
                if n > samples[same[0]].shape[0]:
                    samples[same[0]] = found
            else:
                classes.append(len(samples))
                samples.append(found)
    return classes


def class_of(classes: Sequence[int], size: int) -> int | None:
    """The class of a number of tokens; None where it cannot be told."""
    from bisect import bisect_left

    if size > SIZES[len(classes) - 1]:
        return None
    i = bisect_left(SIZES, size)
    if SIZES[i] == size or classes[i] == classes[i - 1]:
        return classes[i]
    return None


def plan_groups(classes: Sequence[int], lengths: Sequence[int]) -> list[tuple[list[int], int]]:
    """Which tokens share a product.

    Returns
    -------
    list of (tokens, skip)
        Indices of tokens in the packed sequence, and how many of the first ones are only there to
        make up the number (their results are not used).
    """
    tokens: dict[int, list[int]] = {}
    plan: list[tuple[list[int], int]] = []
    start = 0
    for length in lengths:
        own = list(range(start, start + length))
        kind = class_of(classes, length)
        if kind is None:
            plan.append((own, 0))
        else:
            tokens.setdefault(kind, []).extend(own)
        start += length
    for kind, own in tokens.items():
        sizes = [s for s, c in zip(SIZES, classes, strict=False) if c == kind]
        at = 0
        while at < len(own):
            left = len(own) - at
            fitting = [s for s in sizes if s <= left]
            if fitting:
                plan.append((own[at : at + fitting[-1]], 0))
                at += fitting[-1]
            else:
                # Fewer are left than any size of this class: repeat tokens that came before. The
                # class has a piece at least as long as its least size, so there are enough.
                first = len(own) - sizes[0]
                plan.append((own[first:], at - first))
                at = len(own)
    return plan


def _in_groups(module: Any, plan: Sequence[tuple[list[int], int]], x: torch.Tensor) -> torch.Tensor:
    import torch

    product = torch.nn.functional.linear
    out = x.new_empty(*x.shape[:-1], module.out_features)
    for tokens, skip in plan:
        first, last = tokens[0], tokens[-1] + 1
        if last - first == len(tokens):
            part = product(x[:, first:last], module.weight, module.bias)
            out[:, first + skip : last] = part[:, skip:]
        else:
            index = torch.tensor(tokens, device=x.device)
            part = product(x.index_select(1, index), module.weight, module.bias)
            out.index_copy_(1, index[skip:], part[:, skip:])
    return out
