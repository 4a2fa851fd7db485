"""How a press has to be run so that the answers equal those of kvpress's own pipeline.

``replay``
    Its hook acts on the prefill only and reads nothing but what a prefill leaves behind (hidden
    states, position embeddings, keys, values). One prefill serves φ and every such press.
``prefill``
    It needs a prefill of its own, inside its context manager (extra forward passes, attention
    weights); afterwards it decodes as usual.
``pipeline``
    It acts while decoding, changes positions, or does something we do not know: kvpress's pipeline
    runs it.

The decision errs to the slower side: equal answers come before speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from kvpress import BasePress

ExecutionMode = Literal["replay", "prefill", "pipeline"]

_ORDER: tuple[ExecutionMode, ...] = ("replay", "prefill", "pipeline")
#: Presses of kvpress that are not replayed although their class looks harmless, and those that
#: override the hook or the context manager and are known all the same. Nearest class counts.
_KNOWN: dict[str, ExecutionMode] = {
    "BasePress": "replay",
    "ComposedPress": "replay",
    "PerLayerCompressionPress": "replay",
    "DMSPress": "replay",
    "ObservedAttentionPress": "prefill",
    "KVzipPress": "prefill",
    "KVgradPress": "prefill",
    "FastKVzipPress": "prefill",
    "KVComposePress": "prefill",
    "RestoreKVPress": "pipeline",
    "DecodingPress": "pipeline",
    "PrefillDecodingPress": "pipeline",
    "CAMPress": "pipeline",
    "FinchPress": "pipeline",
    "KeyRerotationPress": "pipeline",
}
_HOOKS = ("__call__", "forward_hook")


def execution_mode(press: BasePress) -> ExecutionMode:
    """Decide how ``press`` is run; wrappers are as slow as the slowest press inside them."""
    return _slowest([_own_mode(press), *(execution_mode(inner) for inner in _inner(press))])


def needs_attentions(press: BasePress) -> bool:
    """Whether the press reads attention weights, so that its prefill must run ``eager``."""
    from kvpress import ObservedAttentionPress

    own = isinstance(press, ObservedAttentionPress)
    return own or any(needs_attentions(inner) for inner in _inner(press))


def _slowest(modes: list[ExecutionMode]) -> ExecutionMode:
    return max(modes, key=_ORDER.index)


def _own_mode(press: BasePress) -> ExecutionMode:
    if any(name in vars(press) for name in _HOOKS):  # set on the instance: anything may happen
        return "pipeline"
    if _acts_while_decoding(press):
        return "pipeline"
    for cls in type(press).__mro__:
        known = _known_mode(cls)
        if known is not None:
            return known
        if "forward_hook" in vars(cls):
            return "pipeline"
        if "__call__" in vars(cls):
            return _slowest(["prefill", _own_known_ancestor(cls)])
    return "pipeline"


def _own_known_ancestor(cls: type) -> ExecutionMode:
    """The mode of the nearest known class above one that overrides only the context manager."""
    for ancestor in cls.__mro__[1:]:
        if "forward_hook" in vars(ancestor) and _known_mode(ancestor) is None:
            return "pipeline"
        known = _known_mode(ancestor)
        if known is not None:
            return known
    return "pipeline"


def _known_mode(cls: type) -> ExecutionMode | None:
    if not cls.__module__.startswith("kvpress."):  # a candidate may reuse a name
        return None
    return _KNOWN.get(cls.__name__)


def _acts_while_decoding(press: BasePress) -> bool:
    from kvpress import DMSPress

    return isinstance(press, DMSPress) and bool(press.decoding)


def _inner(press: BasePress) -> Iterator[BasePress]:
    """The presses that a press holds, directly or in lists, tuples and dicts."""
    from kvpress import BasePress

    stack: list[Any] = list(vars(press).values())
    while stack:
        value = stack.pop()
        if isinstance(value, BasePress):
            yield value
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
