"""What runs inside the isolation: turn a captured prefill into a compressed cache.

The warm parent has loaded the model. A forked child serves one artifact: it executes the
artifact's entry point, then answers one request per example. It sees token ids and tensors of the
context; never the gold answer, and the question only in the ``pipeline`` mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from galoop.domains.text.candidate import seed_everything, serve_requests, write_file
from galoop.domains.text.decoding.tensors import pack, view

if TYPE_CHECKING:
    import torch

    from galoop.isolation.channel import Channel


def warm(init: Mapping[str, Any]) -> Any:
    """Load the model in the warm parent: ``{"path": folder, "dtype": name}``."""
    import torch

    torch.set_num_threads(1)
    import kvpress  # noqa: F401 - patches the attention functions before the model is loaded
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(init["path"], dtype=getattr(torch, init["dtype"]))
    model.eval().requires_grad_(False)
    for module in _modules(model):
        module.rotary_emb = model.model.rotary_emb
    return model


def serve(model: Any, init: Mapping[str, Any], channel: Channel) -> None:
    """Serve one artifact: ``init`` holds its ``files`` and the ``compression_ratio`` to keep."""

    def handle(request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        # A fresh press for each request: what one keeps from an example to the next must not
        # decide an answer, since which examples share a process is a matter of scheduling.
        press, spec = _load(init)
        if request["op"] == "load":
            return spec
        if request["op"] == "replay":
            return _replay(model, press, request, fds)
        if request["op"] == "prefill":
            return _own_prefill(model, press, request, fds)
        return _pipeline(model, press, request)

    serve_requests(channel, handle)


def _modules(model: Any) -> list[Any]:
    from galoop.domains.text.decoding.capture import attention_modules

    return attention_modules(model)


def _load(init: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    from galoop.domains.kv_compression.artifact_loader import load_press
    from galoop.domains.kv_compression.replay_modes import execution_mode, needs_attentions

    press, spec = load_press(init["files"], init["compression_ratio"])
    mode = execution_mode(press) if spec.mode == "auto" else spec.mode
    return press, {"mode": mode, "name": spec.name, "eager": needs_attentions(press)}


def _replay(model: Any, press: Any, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
    import torch
    from transformers import DynamicCache

    captured = view(fds[0], request["layout"])
    length = captured["keys"].shape[2]
    positions = torch.arange(length)
    cache = DynamicCache()
    for layer in range(captured["keys"].shape[0]):
        cache.update(captured["keys"][layer][None], captured["values"][layer][None], layer)
    seed_everything(request["seed"])
    modules = _modules(model)
    with torch.inference_mode():
        embeddings = model.model.rotary_emb(captured["hidden"][:1], positions[None])
        press.post_init_from_model(model)
        for module in modules:
            module.masked_key_indices = None
            kwargs = {
                "hidden_states": captured["hidden"][module.layer_idx][None],
                "past_key_values": cache,
                "cache_position": positions,
                "position_embeddings": embeddings,
            }
            press.forward_hook(module, (), kwargs, (None, None))
    write_file(fds[1], _pack_cache(cache, modules))
    return {"forward_tokens": 0}


def _own_prefill(
    model: Any, press: Any, request: Mapping[str, Any], fds: list[int]
) -> dict[str, Any]:
    """The press runs its own prefill; the tokens it feeds the model are counted."""
    import torch
    from transformers import DynamicCache

    seed_everything(request["seed"])
    modules = _modules(model)
    for module in modules:
        module.masked_key_indices = None
    cache = DynamicCache()
    ids = torch.tensor([request["context_ids"]])
    with (
        torch.inference_mode(),
        _counting(model) as fed,
        _attention(model, request["eager"]),
        press(model),
    ):
        model.model(input_ids=ids, past_key_values=cache)
    write_file(fds[0], _pack_cache(cache, modules))
    return {"forward_tokens": sum(fed)}


@contextmanager
def _counting(model: Any) -> Iterator[list[int]]:
    """Count the tokens that pass through the first decoder layer.

    An honest artifact's extra passes are seen here. This count is made in the candidate's own
    process, so it informs the report; the caps that bind a hostile candidate are time and size.
    """
    fed: list[int] = []

    def count(module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        fed.append(kwargs["hidden_states"].shape[1])

    hook = _modules(model)[0].register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield fed
    finally:
        hook.remove()


@contextmanager
def _attention(model: Any, eager: bool) -> Iterator[None]:
    before = model.config._attn_implementation
    if eager:
        model.config._attn_implementation = "eager"
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _pack_cache(cache: Any, modules: list[Any]) -> bytes:
    import torch

    tensors: dict[str, torch.Tensor] = {}
    for module in modules:
        i = module.layer_idx
        layer = cache.layers[i]
        tensors[f"keys.{i}"] = layer.keys[0]
        tensors[f"values.{i}"] = layer.values[0]
        masked = getattr(module, "masked_key_indices", None)
        if masked is not None:
            table = torch.zeros(layer.keys.shape[1:3], dtype=torch.bool)
            table[masked[1].cpu(), masked[2].cpu()] = True
            tensors[f"masked.{i}"] = table
        module.masked_key_indices = None
    return pack(tensors)


def _pipeline(model: Any, press: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """kvpress's own pipeline, for presses that act while decoding or change positions.

    The harness cannot measure such a cache from outside; only presses of installed packages are
    evaluated this way (see :mod:`.session`).
    """
    import torch
    from kvpress.pipeline import KVPressTextGenerationPipeline

    seed_everything(request["seed"])
    pipeline = object.__new__(KVPressTextGenerationPipeline)
    pipeline.model = model
    pipeline.tokenizer = _Ids()
    for module in _modules(model):
        module.masked_key_indices = None
    inputs = {
        "context_ids": torch.tensor([request["context_ids"]]),
        "questions_ids": [torch.tensor([request["question_ids"]])],
    }
    kept: list[int] = []

    def measure(cache: Any, *args: Any) -> None:
        kept.extend(cache.get_seq_length(i) for i in range(len(cache)))

    pipeline._remove_answer_from_cache = measure
    with torch.inference_mode(), _attention(model, request["eager"]):
        (tokens,) = pipeline._forward(inputs, max_new_tokens=request["max_new_tokens"], press=press)
    return {"tokens": [int(t) for t in tokens.split(",")], "kept": kept}


class _Ids:
    """A tokenizer whose text is the ids: the trusted side does the decoding."""

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return ",".join(str(int(i)) for i in ids)
