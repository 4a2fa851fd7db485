"""What a proposer is told about artifacts of this domain: facts, goals and rules.

The texts give no hints of inputs on which a compression breaks, nor of how to repair it.
"""

from __future__ import annotations

OBJECTIVE = """\
Write a KV-cache compression algorithm (a "press") that keeps the answers of a language model on the
examples below as close as possible to the answers it gives without compression, under a fixed
budget. An example is a context and a question about it. The context is prefilled and its cache is
compressed before the question is seen; the same compressed cache has to serve any question about
the context. The score of a press is the fraction of examples answered correctly. The algorithm must
hold on examples of the same kinds that it was not shown, on other texts, at other lengths and on
established benchmarks, so it has to be a general rule about tokens, heads and layers.
"""

BACKGROUND = """\
The cache. While the context is prefilled, each attention layer stores a key and a value per token
and KV head. Keys are stored after rotary position embedding (RoPE); several query heads share one
KV head (grouped-query attention). Entries that are dropped can no longer be attended to; the kept
ones keep their positions. At decoding, question and answer tokens are appended uncompressed.

The press. kvpress calls `press.compress(module, hidden_states, keys, values, attentions, kwargs)`
once per layer, in order, right after that layer's prefill:
- `module`: the attention layer. `module.layer_idx`, `module.config` (num_hidden_layers,
  num_attention_heads, num_key_value_heads), `module.head_dim`, the projections `q_proj`, `k_proj`,
  `v_proj`, `o_proj`, and `rotary_emb`.
- `hidden_states`: (batch, tokens, hidden), the normalised input of the layer. `keys`, `values`:
  (batch, KV heads, tokens, head_dim). `attentions` is None. `kwargs["position_embeddings"]`: (cos,
  sin). Tensors may be bfloat16: compute scores in float32.
- It returns the kept keys and values, (batch, KV heads, kept, head_dim); all layers the same
  number. A press that keeps different numbers per head or layer returns keys and values whole and
  sets `module.masked_key_indices = (batch indices, head indices, token indices)` of the entries to
  drop; these count as dropped.
- A subclass of `kvpress.ScorerPress` needs `score(module, hidden_states, keys, values, attentions,
  kwargs)`, (batch, KV heads, tokens), higher = keep; the base class keeps the best of each head.
- `post_init_from_model(model)` is called once before a prefill.
- torch, transformers, kvpress and `galoop.domains.kv_compression.signals` (importance signals,
  transforms and selections, each documented) can be imported.

The budget. `n = max(1, int(tokens * (1 - compression_ratio)))` entries per head and layer on
average. It is measured on every example from the cache that the press leaves behind, together with
extra forward passes and added latency; what the press says of itself is not believed.

The environment. One thread, no network, a read-only file system, bounded memory and time.
"""

CONTRACT = """\
An artifact is a folder:
- `artifact.toml` with `[artifact]` name, domain = "kv-compression", entry = "press.py:build_press",
  mode = "auto"; `[budget]` compression_ratio; optionally `[provenance]` origin, parent, note.
- `press.py` (and further sources, imported by their own names) with
  `def build_press(compression_ratio: float) -> BasePress`.
At most 32 text files and 256 KB together, UTF-8.

Rejected, with the reason given back:
- a folder that breaks the above, a source that does not parse, a missing entry point;
- an entry point that raises, or that returns something other than a `kvpress.BasePress`;
- a press that raises, or runs over its limits of time, memory or output;
- keys and values of a wrong shape or type, or that are not finite;
- keeping more than the budget on any example, or nothing at all;
- trying to reach the network, other processes, files outside its own, or the question or answer.
The same cache given twice must give the same result: seed every random choice inside the press.
"""

__all__ = ["BACKGROUND", "CONTRACT", "OBJECTIVE"]
