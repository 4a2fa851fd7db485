"""On which numbers of tokens the result of a matrix product for one token depends.

A processor's library chooses its kernel by shape, so a token's row of ``x @ W.T`` may be rounded
differently when other tokens share the product. Which numbers of tokens give the same bits is found
out here by trying, once per shape, with inputs whose exact product is zero: what is left is nothing
but rounding, so that any other order of summation shows.

In half precision oneDNN also rearranges the weights anew at every call, which costs more than the
product of a few tokens. Weights rearranged once give the same bits (tried as well) several times
faster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Numbers of tokens that are tried; one between two of them counts as they do where they agree.
SIZES = (*range(1, 10), 12, 15, 16, 17, 20, 24, 31, 32, 33, 48, 64, 96, 128, 256, 512, 1024)
_ROWS = 4
#: Multiplications a trial may cost; the vocabulary's wide layer is tried with fewer tokens.
_MOST_WORK = 10**9
#: Rearranged copies of the weights may take this much memory.
_MOST_BYTES = 2**30

Product = Callable[[Any], Any]


class Grouping:
    """How tokens may share the matrix products of one model, so that nothing shows that they do.

    Parameters
    ----------
    model : PreTrainedModel
        Its linear layers are tried with the number of threads that is set now.
    """

    def __init__(self, model: Any) -> None:
        import torch

        self._classes: dict[tuple[int, int, bool], list[int]] = {}
        self._layers: dict[Any, Product] = {}
        rearrange: dict[tuple[int, int, bool], bool] = {}
        self._tried = SIZES[-1]
        left = _MOST_BYTES
        for module in model.modules():
            if not isinstance(module, torch.nn.Linear):
                continue
            key = _shape(module)
            if key not in self._classes:
                self._classes[key], rearrange[key] = _try_sizes(module)
            if module is not model.get_output_embeddings():
                self._tried = min(self._tried, SIZES[len(self._classes[key]) - 1])
            size = module.weight.numel() * module.weight.element_size()
            if rearrange[key] and size <= left:
                self._layers[module] = _rearranged(module.weight, module.bias)
                left -= size
            elif len(set(self._classes[key])) > 1:
                self._layers[module] = _plain(module.weight, module.bias)

    def covers(self, length: int) -> bool:
        """Whether products of that many tokens were tried for every layer of the model's body."""
        return length <= self._tried

    @contextmanager
    def applied(self, lengths: Sequence[int]) -> Iterator[None]:
        """Let the model's linear layers compute pieces of these lengths as if each were alone."""
        plans = {
            key: plan_groups(classes, lengths) if len(set(classes)) > 1 else None
            for key, classes in self._classes.items()
        }
        try:
            for module, product in self._layers.items():
                plan = plans[_shape(module)]
                module.forward = partial(_in_groups, product, plan) if plan else product
            yield
        finally:
            for module in self._layers:
                vars(module).pop("forward", None)


def _shape(module: Any) -> tuple[int, int, bool]:
    return (module.out_features, module.in_features, module.bias is not None)


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    import torch

    return partial(_call, torch.nn.functional.linear, weight, bias)


def _call(linear: Any, weight: Any, bias: Any, x: Any) -> Any:
    return linear(x, weight, bias)


def _rearranged(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """A product with weights that oneDNN has put in its own order, once."""
    import torch

    with torch.inference_mode():
        own = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)

    def product(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, own, bias, "none", [], "")
        return out

    return product


def _try_sizes(module: Any) -> tuple[list[int], bool]:
    """Classes of sizes, and whether rearranged weights give the same bits in each."""
    import torch

    weight = module.weight
    bias = None if module.bias is None else torch.zeros_like(module.bias)
    limit = [s for s in SIZES if s <= 8 or s * weight.shape[0] * weight.shape[1] <= _MOST_WORK]
    w, x = _cancelling(weight, limit[-1])
    with torch.inference_mode():
        classes = size_classes(_plain(w, bias), x, limit)
        if weight.device.type != "cpu" or weight.dtype == torch.float32:
            return classes, False
        try:
            product = _rearranged(w, bias)
            same = all(
                torch.equal(_rows(product, x, size), _rows(_plain(w, bias), x, size))
                for size in limit[:: max(1, len(limit) // 8)]
            )
        except (AttributeError, RuntimeError, NotImplementedError):  # built without oneDNN
            return classes, False
    return classes, same


def _cancelling(weight: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and inputs of the layer's shape and type, in random order, with product zero."""
    import torch

    out_features, in_features = weight.shape
    generator = torch.Generator().manual_seed(0)
    half = in_features // 2
    order = torch.randperm(2 * half, generator=generator)
    w = torch.zeros(out_features, in_features)
    x = torch.zeros(1, tokens, in_features)
    w_half = torch.randn(out_features, half, generator=generator)
    x_half = torch.randn(1, tokens, half, generator=generator)
    w[:, order] = torch.cat([w_half, -w_half], dim=-1)
    x[..., order] = torch.cat([x_half, x_half], dim=-1)
    return w.to(weight), x.to(weight)


def _rows(product: Product, x: torch.Tensor, size: int) -> torch.Tensor:
    """The first rows of a product of ``size`` tokens; of tokens one by one for size 1."""
    import torch

    if size == 1:
        return torch.cat([product(x[:, i : i + 1])[0] for i in range(min(_ROWS, x.shape[1]))])
    rows: torch.Tensor = product(x[:, :size])[0, :_ROWS]
    return rows


def size_classes(product: Product, x: torch.Tensor, sizes: Sequence[int]) -> list[int]:
    """For each size, the number of the class of sizes that give the same bits."""
    import torch

    classes: list[int] = []
    samples: list[torch.Tensor] = []
    for size in sizes:
        found = _rows(product, x, size)
        n = found.shape[0]
        same = [c for c, s in enumerate(samples) if torch.equal(s[:n], found[: s.shape[0]])]
        if not same:
            classes.append(len(samples))
            samples.append(found)
            continue
        classes.append(same[0])
        if n > samples[same[0]].shape[0]:
            samples[same[0]] = found
    return classes


def class_of(classes: Sequence[int], size: int) -> int | None:
    """The class of a number of tokens; None where it cannot be told."""
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


def _in_groups(
    product: Product, plan: Sequence[tuple[list[int], int]], x: torch.Tensor
) -> torch.Tensor:
    import torch

    parts: list[torch.Tensor] = []
    order: list[int] = []
    for tokens, skip in plan:
        first, last = tokens[0], tokens[-1] + 1
        if last - first == len(tokens):
            part = product(x[:, first:last])
        else:
            part = product(x.index_select(1, torch.tensor(tokens, device=x.device)))
        parts.append(part[:, skip:])
        order += tokens[skip:]
    joined = torch.cat(parts, dim=1)
    if order == list(range(len(order))):
        return joined
    out = torch.empty_like(joined)
    out[:, torch.tensor(order, device=x.device)] = joined
    return out
