"""What a proposer is told about artifacts of this domain: facts, goals and rules.

The texts give no hints of inputs on which a method breaks, nor of how to repair it.
"""

from __future__ import annotations

OBJECTIVE = """\
Write a position plan that lets a language model with rotary position embeddings (RoPE) read texts
several times longer than the window it was trained on, without any training. An example is a
context and a question about it, longer than the window; the score of a plan is the fraction of
examples answered correctly. The unmodified model answers the same kind of example correctly when it
is short enough for its window. The plan must hold on examples of the same kinds that it was not
shown, on other texts, at other lengths up to the one it has to reach, and on established
benchmarks, so it has to be a general rule about positions, heads and layers.
"""

BACKGROUND = """\
Positions. RoPE rotates queries and keys by their positions, so that a logit depends on the
difference of the two. Pair m of a head's dimensions turns by `shape.frequencies[m]` radians a
position, fastest first. In training only differences below `shape.window` were seen.

The plan. The cache holds unrotated keys, so every query may see every key at any position. For
query i the keys 0 … i are cut into bands of consecutive keys, nearest first; each band has its own
positions for queries and keys. One softmax runs over all bands together.
- `Band(start, query, key, frequency=None, drop=False)`: `start[i]` is the first key of the band
  for query i; the first band ends with key i, each further one where the band before it starts;
  keys before the last band are not attended to (by this head: some head of each layer has to).
  `query[i]` and `key[j]` are positions, fractions allowed. `frequency[m]` are factors on the
  model's frequencies in this band. `drop=True`: the keys of the band are not attended to.
- `Plan(bands, scale=None)`: 1 to 8 bands; `scale[i]` is a factor on all logits of query i.
- All arrays are NumPy arrays or lists; `start`, `query`, `key`, `scale` have `length` entries.
- `build_plan(shape, length)` returns one Plan for the whole model, or a list with an entry for
  each layer, each a Plan or a list of one Plan for each query head. Use the same object where
  plans are the same: at most 64 may differ.
- `shape`: layers, heads, kv_heads, head_dim, window (tokens), frequencies (head_dim / 2),
  extension (how many windows have to be reached).
- `length` is a whole number of windows, or the whole extension, and at least as long as the text
  with its question and its answer. A plan sees no text.
- numpy, `galoop.methods.positions` (Band, Plan, Shape) and
  `galoop.domains.context_extension.layouts` (ready-made bands, each documented) can be imported.

What is measured of every plan: the share of the pairs of tokens that are attended to, and the
largest difference of positions in use.

The environment. One thread, no network, a read-only file system, bounded memory and time.
"""

CONTRACT = """\
An artifact is a folder:
- `artifact.toml` with `[artifact]` name, domain = "context-extension", entry =
  "plan.py:build_plan"; `[budget]` extension; optionally `[provenance]` origin, parent, note.
- `plan.py` (and further sources, imported by their own names) with
  `def build_plan(shape: Shape, length: int) -> Plan`.
At most 32 text files and 256 KB together, UTF-8.

Rejected, with the reason given back:
- a folder that breaks the above, a source that does not parse, a missing entry point;
- an entry point that raises, runs over its limits of time, memory or output, or returns something
  else than plans;
- arrays of a wrong length, numbers that are not finite, a `start` that is no whole number, lies
  below 0, or behind the end of its band;
- a key whose position is greater than its query's; a difference of positions above
  extension · window;
- a query that attends to no key; in any layer, a query and an earlier key that no head of the
  layer attends to (heads may leave keys out, a layer may not); frequency factors outside 0 … 4;
  scales outside 0.01 … 16;
- more than 8 bands in a plan, or more than 64 plans that differ;
- trying to reach the network, other processes, or files outside its own.
"""

__all__ = ["BACKGROUND", "CONTRACT", "OBJECTIVE"]
