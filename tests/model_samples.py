"""A tiny Llama, as a folder, as a GGUF file and inside a wheel, for the tests of models."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

from galoop.models.wheel import WheelSource

WHEEL = "llm_tiny-1.0-py3-none-any.whl"
MEMBER = "llm_tiny/tiny.gguf"
HEADS, KV_HEADS = 4, 2


def tiny_llama(seed: int = 0) -> Any:
    """A random Llama of two layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary()[0]), hidden_size=32, intermediate_size=64,
            num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
            max_position_embeddings=96, tie_word_embeddings=True, initializer_range=0.3,
            bos_token_id=0, eos_token_id=0, rms_norm_eps=1e-5,
        )
    ).eval()  # fmt: skip


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ["<|endoftext|>", *sorted(ByteLevel.alphabet()), "he", "Ġhe"], ["h e", "Ġ he"]


def tiny_folder(folder: Path, seed: int = 0) -> Path:
    """Model and tokenizer saved as transformers saves them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, merges = vocabulary()
    bpe = models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=tokens[0], eos_token=tokens[0]
    )
    tiny_llama(seed).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def tiny_gguf(path: Path, seed: int = 0) -> Path:
    """The same model as llama.cpp stores it, written without any of galoop's code."""
    from gguf import GGUFWriter, TokenType

    model, (tokens, merges) = tiny_llama(seed), vocabulary()
    config = model.config
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, tensor in llama_cpp_tensors(model).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_cpp_tensors(model: Any) -> dict[str, Any]:
    """llama.cpp's names; queries and keys with the rotary pairs interleaved."""
    state = {k: v.detach().numpy() for k, v in model.state_dict().items()}

    def interleave(weight: Any, heads: int) -> Any:
        rows, columns = weight.shape
        pairs = weight.reshape(heads, 2, rows // heads // 2, columns)
        return pairs.swapaxes(1, 2).reshape(rows, columns)

    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    parts = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    for layer in range(model.config.num_hidden_layers):
        for theirs, ours in parts.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(theirs)
            weight = weight if heads is None else interleave(weight, heads)
            tensors[f"blk.{layer}.{theirs}.weight"] = weight.copy()
    return tensors


def make_wheel(folder: Path, content: bytes) -> tuple[Path, WheelSource]:
    """A wheel with one member, and the source that pins both hashes."""
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, content)
    source = WheelSource(
        requirement="llm-tiny==1.0",
        wheel=WHEEL,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=MEMBER,
        member_sha256=hashlib.sha256(content).hexdigest(),
    )
    return path, source
