"""What a press artifact may state: see :mod:`galoop.domains.text.artifact_spec` for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from galoop.domains.text import artifact_spec
from galoop.domains.text.artifact_spec import MANIFEST, ArtifactSpec, SpecRules, did_you_mean

__all__ = ["DOMAIN", "MANIFEST", "RULES", "ArtifactSpec", "Mode", "did_you_mean", "parse_spec"]

#: How a press is evaluated (see :mod:`.replay_modes`); ``auto`` lets the harness decide.
Mode = Literal["auto", "replay", "prefill", "pipeline"]

DOMAIN = "kv-compression"
#: ``compression_ratio`` is the fraction of KV entries to drop; ``extra_forward_passes`` and
#: ``added_latency`` are relative to the prefill and optional.
RULES = SpecRules(
    domain=DOMAIN,
    entry="press.py:build_press",
    signature="def build_press(compression_ratio: float) -> BasePress",
    budget={
        "compression_ratio": (0.0, 1.0),
        "extra_forward_passes": (0.0, float("inf")),
        "added_latency": (0.0, float("inf")),
    },
    required={
        "compression_ratio": "state the fraction of KV entries to drop, for example 0.75",
    },
    modes=get_args(Mode),
)


def parse_spec(files: Mapping[str, str]) -> ArtifactSpec:
    """Check a press artifact's files and read its manifest.

    Raises
    ------
    ArtifactError
        With the file, the table and the key that are wrong.
    """
    return artifact_spec.parse_spec(files, RULES)
