"""What a proposer is told about artifacts of this domain: facts, goals and rules.

The texts give no hints of inputs on which a quantized cache breaks, nor of how to repair it.
"""

from __future__ import annotations

OBJECTIVE = """\
Write a codec for the KV cache of a language model: it stores the keys and values of a context in
few bits and gives them back, so that the model's answers stay as close as possible to those it
gives from the exact cache, under a fixed budget of bits. An example is a context and a question
about it. The context is prefilled and its cache is encoded and decoded before the question is seen;
the same restored cache has to serve any question about the context. The score of a codec is the
fraction of examples answered correctly. The codec must hold on examples of the same kinds that it
was not shown, on other texts, at other lengths and on established benchmarks, so it has to be a
general rule about numbers, tokens, channels, heads and layers.
"""

BACKGROUND = """\
The cache. While the context is prefilled, each attention layer stores a key and a value per token
and KV head. Keys are stored after rotary position embedding (RoPE); several query heads share one
KV head (grouped-query attention). Question and answer tokens are appended to the restored cache in
the model's own precision and are not quantized.

The codec. The harness calls `codec.encode(cache)` in one process and `codec.decode(tensors, shape)`
in another; nothing but the encoded tensors passes from the first to the second.
- `cache.keys`, `cache.values`: (layers, KV heads, tokens, channels), in the model's type (bfloat16,
  float16 or float32): compute in float32. `cache.shape`: `layers`, `heads`, `length`, `dim`, and
  the model's rotary tables `cos` and `sin`, (tokens, rotary channels), float32.
- `encode` returns a dict of tensors by name. Types: bool, uint8, int8, int16, int32, int64,
  float16, bfloat16, float32, float64; each number counts its full size (a bool takes 8 bits), so
  that codes of fewer than 8 bits have to be packed.
- `decode` is given these tensors and a shape like `cache.shape`. It returns keys and values, each
  (layers, KV heads, tokens, channels).
- `galoop.methods.codec` has `Writer` and `Reader`: streams of codes of 1 to 8 bits, packed without
  a gap, of 16-bit numbers, and of small whole numbers; `stored_bytes` counts as the harness does.
  `galoop.methods.quantization` has packing, groups by channel and by token, rounding grids, a
  Hadamard transform, and rotary embedding and its inverse. torch can be imported.

The budget. Mean bits per number of the cache: eight times the bytes of all encoded tensors (with
their names and eight bytes for each dimension and type) over the count of numbers in keys and
values. It is measured on every example between the two processes; what the codec says of itself is
not believed. Scales, offsets, indices and numbers kept in full precision all count.

The environment. One thread, no network, a read-only file system, bounded memory and time.
"""

CONTRACT = """\
An artifact is a folder:
- `artifact.toml` with `[artifact]` name, domain = "quantized-kv", entry = "codec.py:build_codec";
  `[budget]` bits; optionally `[provenance]` origin, parent, note.
- `codec.py` (and further sources, imported by their own names) with `def build_codec(bits: float)`,
  which returns an object with `encode(cache)` and `decode(tensors, shape)`.
At most 32 text files and 256 KB together, UTF-8.

Rejected, with the reason given back:
- a folder that breaks the above, a source that does not parse, a missing entry point;
- an entry point that raises, or that returns something without `encode` and `decode`;
- a codec that raises, or runs over its limits of time, memory or output;
- encoding into anything else than a dict of tensors, into none, or into more than 4096;
- storing more than the budget on any example;
- keys and values of a wrong shape, or that are not finite;
- trying to reach the network, other processes, files outside its own, or the question or answer.
Each call runs in a new process, so that nothing is remembered from one context to the next. The
same cache given twice must give the same result: seed every random choice inside the codec.
"""

__all__ = ["BACKGROUND", "CONTRACT", "OBJECTIVE"]
