"""What a codec artifact may state."""

from __future__ import annotations

from collections.abc import Mapping

from galoop.domains.text import artifact_spec
from galoop.domains.text.artifact_spec import ArtifactSpec, SpecRules

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


def parse_spec(files: Mapping[str, str]) -> ArtifactSpec:
    """Check a codec artifact's files and read its manifest.

    Raises
    ------
    ArtifactError
        With the file, the table and the key that are wrong.
    """
    return artifact_spec.parse_spec(files, RULES)
