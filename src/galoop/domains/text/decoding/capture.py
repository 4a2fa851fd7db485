"""One prefill, kept so that every artifact can be replayed on it.

The hook of a press never alters the forward pass, so what a press would have seen during the
prefill can be captured once and handed to any number of presses afterwards: per layer the hidden
states that enter the attention module, and the full (uncompressed) keys and values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from galoop.domains.text.decoding.tensors import SharedTensors, view

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Prefill:
    """A captured prefill of one context.

    Attributes
    ----------
    context_ids : list of int
        The S token ids of the context, template head included.
    hidden : Tensor, shape (layers, S, hidden)
        Input of each attention module, in the model's dtype.
    keys, values : Tensor, shape (layers, H_kv, S, head_dim)
        The full cache; keys are rotated.
    seconds : float
        Wall time of the forward pass.
    shared : SharedTensors
        The same three tensors in a sealed file that candidates' processes map. On a CPU the
        tensors above are a view of it.
    """

    context_ids: list[int]
    hidden: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    seconds: float
    shared: SharedTensors

    @property
    def length(self) -> int:
        """Context length S in tokens."""
        return len(self.context_ids)

    @property
    def nbytes(self) -> int:
        """Size of the captured tensors in bytes."""
        return sum(t.numel() * t.element_size() for t in (self.hidden, self.keys, self.values))


def attention_modules(model: Any) -> list[Any]:
    """The attention module of every decoder layer, in order."""
    decoder = model.model.language_model if hasattr(model.model, "language_model") else model.model
    return [layer.self_attn for layer in decoder.layers]


def prefill(model: Any, context_ids: list[int]) -> Prefill:
    """Run the model's body once over the context and keep what presses may ask for."""
    import time

    import torch
    from transformers import DynamicCache

    hidden: list[torch.Tensor] = []

    def keep(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        hidden.append(kwargs["hidden_states"][0])

    modules = attention_modules(model)
    hooks = [m.register_forward_pre_hook(keep, with_kwargs=True) for m in modules]
    cache = DynamicCache()
    began = time.perf_counter()
    try:
        with torch.inference_mode():
            model.model(
                input_ids=torch.tensor([context_ids], device=model.device), past_key_values=cache
            )
    finally:
        for hook in hooks:
            hook.remove()
    seconds = time.perf_counter() - began
    layers: list[Any] = cache.layers
    captured = {
        "hidden": torch.stack(hidden),
        "keys": torch.cat([layer.keys for layer in layers]),
        "values": torch.cat([layer.values for layer in layers]),
    }
    shared = SharedTensors(captured)
    if captured["keys"].device.type == "cpu":
        captured = view(shared.fd, shared.layout)
    return Prefill(list(context_ids), **captured, seconds=seconds, shared=shared)


class PrefillCache:
    """Captured prefills of recent contexts, bounded by their size in bytes.

    Parameters
    ----------
    max_bytes : int
        The least recently used captures are dropped beyond this.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, ...], Prefill] = OrderedDict()
        self._bytes = 0

    def get(self, context_ids: list[int], compute: Callable[[list[int]], Prefill]) -> Prefill:
        """The capture for ``context_ids``; computed at most once while it stays in the cache."""
        key = tuple(context_ids)
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        entry = compute(context_ids)
        self._entries[key] = entry
        self._bytes += entry.nbytes
        while self._bytes > self._max_bytes and len(self._entries) > 1:
            _, dropped = self._entries.popitem(last=False)
            self._bytes -= dropped.nbytes
        return entry
