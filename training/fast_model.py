"""Tokenizer and model of the fast model, and its structured initialisation."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fast_text import TextConfig, load_words, make_document

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
ROPE_THETA = 1e4
# Single digits and single marks, so that a code is copied digit by digit and a full stop that
# follows a value is a token of its own.
SPLIT = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s"


def train_tokenizer(vocab: int, seed: int, documents: int = 3000) -> Tokenizer:
    """Byte-level BPE over a corpus of the script's own documents: any text round-trips."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    words, rng = load_words(), random.Random(seed)

    def corpus() -> Any:
        for i in range(documents):
            document = make_document(rng, words, TextConfig(filler=8, held_out_forms=i % 8 == 0))
            yield "".join(document.pieces)
            yield "".join(query.question for query in document.queries)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, window: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (no chat template)."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": window,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **SPECIAL_TOKENS,
    }
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def build_model(
    *,
    vocab: int,
    window: int,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    seed: int,
) -> LlamaForCausalLM:
    """A randomly initialised Llama, except for the queries and keys of its first layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=window,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config)
    look_back(model)
    return model


#: Layer -> offset of each head that starts as a reader of an earlier token.
LOOK_BACK: dict[int, tuple[int, ...]] = {0: (1, 2, 3, 4, 5, 6, 7)}


def look_back(model: LlamaForCausalLM, constant: float = 0.28, sharpness: float = 6.5) -> None:
    """Start some heads of the first layers as readers of a token at a fixed distance before.

    Copying needs heads that tell each token what stood before it; learning them from nothing takes
    most of a small budget. Here embedding coordinate 0 is the same for all tokens; keys read it
    into the first of each pair of RoPE coordinates, and queries read it turned back by ``offset``
    positions, so the score of a key at distance d is
    ``sharpness^2 sum_f cos(theta_f (d - offset)) / sqrt(head_dim)``, which is largest at
    ``d = offset``. All other weights are random, and all of them are trained.
    """
    config = model.config
    head_dim = config.head_dim
    half, group = head_dim // 2, config.num_attention_heads // config.num_key_value_heads
    pairs = min(6, half)
    frequency = ROPE_THETA ** (-torch.arange(half) / half)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = constant
        for layer, offsets in LOOK_BACK.items():
            attention = model.model.layers[layer].self_attn
            scale = sharpness / _normalised_constant(model, layer)
            for head, offset in enumerate(offsets):
                angle, row = frequency[:pairs] * offset, head * head_dim
                attention.q_proj.weight[row : row + head_dim] *= 0.1
                attention.q_proj.weight[row : row + pairs, 0] = scale * torch.cos(angle)
                turned = slice(row + half, row + half + pairs)
                attention.q_proj.weight[turned, 0] = -scale * torch.sin(angle)
                row = head // group * head_dim
                attention.k_proj.weight[row : row + head_dim] *= 0.1
                attention.k_proj.weight[row : row + pairs, 0] = scale


def _normalised_constant(model: LlamaForCausalLM, layer: int) -> float:
    """The mean of coordinate 0 at the entrance of a layer's attention, over random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (4, 64), generator=generator)
    seen: list[torch.Tensor] = []
    norm = model.model.layers[layer].input_layernorm
    handle = norm.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        model.model(input_ids=ids, use_cache=False)
    finally:
        handle.remove()
    return float(seen[0][..., 0].mean())
