"""Replace a model's attention function for a while, and leave the model as it was found.

The function is registered with transformers *together with a mask function*: a name without one
gets no mask, and attention would not be causal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attention_function(model: Any, name: str, function: Any, mask: Any) -> Iterator[None]:
    """Let ``model`` attend by ``function``; afterwards model and registries are as they were.

    Parameters
    ----------
    model : PreTrainedModel
    name : str
        Under which both functions are registered with transformers for the time being; nobody
        else's.
    function : callable
        Transformers' attention function.
    mask : callable
        The mask function that goes with it.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    before = list(_settings(model.config))
    try:
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, mask)
        model.config._attn_implementation = name
        yield
    finally:
        for config, value in before:
            config._attn_implementation = value
        # There is no public way to take a name back, and masks are looked up in this table alone.
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


def _settings(config: Any) -> Iterator[tuple[Any, Any]]:
    """The attention setting of a configuration and, after it, of those inside it."""
    yield config, config._attn_implementation
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if inner is not None:
            yield from _settings(inner)
