"""What a proposer is told about artifacts of this domain: facts, goals and rules.

The texts give no hints of inputs on which a selector breaks, nor of how to repair it.
"""

from __future__ import annotations

OBJECTIVE = """\
Write an algorithm (a "selector") that says which entries of a language model's KV cache each row of
question and answer attends to, so that the answers on the examples below stay as close as possible
to the answers it gives with dense attention, under a fixed budget. An example is a context and a
question about it. The context is prefilled with dense attention before the question is seen. The
score of a selector is the fraction of examples answered correctly. The algorithm must hold on
examples of the same kinds that it was not shown, on other texts, at other lengths and on
established benchmarks, so it has to be a general rule about queries, keys and positions.
"""

BACKGROUND = """\
The cache. While the context is prefilled, each attention layer stores a key and a value per token
and KV head. Keys and queries are given after rotary position embedding (RoPE); several query heads
share one KV head (grouped-query attention): query head h belongs to KV head h // groups.

The selector has two methods, called in two separate processes.
- `index(keys, values)` is called once a layer, in order, right after the prefill: both are
  (1, KV heads, tokens of the context, head_dim). It returns a dict of tensors, the index. All that
  the selector may know of the context later is in it, and its bytes are measured.
- `select(index, step)` is called for each layer of each step, with that layer's index. A step is
  the rows of the question together, or one row of the answer. `step.queries`: (1, query heads,
  rows, head_dim). `step.keys`, `step.values`: (1, KV heads, new tokens, head_dim), of every token
  after the context, those of the rows included (the rows are the last ones). `step.context`: tokens
  of the context; `step.length`: tokens in all; `step.visible`: (rows,), how many entries each row
  sees, itself included; `step.seen`: bool (rows, length); `step.room(density)`: (rows,), how many
  each head of a row may attend to; `step.layer`; `step.groups`; `step.grouped()`: the queries as
  (1, KV heads, groups, rows, head_dim). `step.previous`: bool (1, query heads, length - rows), what
  the row before chose in this layer, or None. `step.below`: bool (1, query heads, rows, length),
  what the layer below chose for these rows, or None.
- It returns a bool mask (1, query heads or KV heads, rows, length), or whole numbers (1, heads,
  rows, k): the entries by number, -1 for none.
- Tensors may be bfloat16: compute scores in float32.
- torch, `galoop.methods` and `galoop.domains.sparse_decoding.scores` (scores and choices, each
  documented) can be imported.

The budget. In each layer a row's query heads together may attend to no more than
`heads * max(1, floor(density * visible))` entries; a choice for a KV head counts for each of its
query heads. The row's own token is attended to in any case and is one of them. The index may hold
no more than `index_fraction` times the bytes of the context's keys. Both are measured on every
example, as is the time that the choices take; what the selector says of itself is not believed.

The environment. One thread, no network, a read-only file system, bounded memory and time.
"""

CONTRACT = """\
An artifact is a folder:
- `artifact.toml` with `[artifact]` name, domain = "sparse-decoding", entry =
  "selector.py:build_selector"; `[budget]` density; optionally `[provenance]` origin, parent, note.
- `selector.py` (and further sources, imported by their own names) with
  `def build_selector(density: float)`, which returns an object with the two methods.
At most 32 text files and 256 KB together, UTF-8.

Rejected, with the reason given back:
- a folder that breaks the above, a source that does not parse, a missing entry point;
- an entry point that raises, or returns something without `index` and `select`;
- a selector that raises, or runs over its limits of time, memory or output;
- an index that is no dict of tensors, or holds more bytes than the budget allows;
- a choice of a wrong shape or type, an entry out of range, named twice, or after the row itself;
- attending to more than the budget on any row of any example;
- trying to reach the network, other processes, files outside its own, or the text or the answer.
The same arguments given twice must give the same result: seed every random choice inside the
selector.
"""

__all__ = ["BACKGROUND", "CONTRACT", "OBJECTIVE"]
