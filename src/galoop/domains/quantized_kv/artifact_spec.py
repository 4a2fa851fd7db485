"""What a codec artifact may state."""

from __future__ import annotations

from galoop.domains.text.artifact_spec import SpecRules

DOMAIN = "quantized-kv"
SOURCE_FILE = "codec.py"
#: ``bits`` is the mean number of bits per number of the cache, everything counted;
#: ``added_latency`` is relative to the prefill and optional.
RULES = SpecRules(
    domain=DOMAIN,
    entry=f"{SOURCE_FILE}:build_codec",
    signature="def build_codec(bits: float)",
    budget={"bits": (0.0, 64.0 + 1e-9), "added_latency": (0.0, float("inf"))},
    required={"bits": "state the mean bits per number of the cache, for example 2.75"},
)

#: Checks an artifact's files and reads its manifest.
parse_spec = RULES.parse
