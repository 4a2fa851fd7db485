"""What a press artifact may state: see :mod:`galoop.domains.text.artifact_spec` for the rest."""

from __future__ import annotations

from typing import Literal, get_args

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

#: Checks an artifact's files and reads its manifest.
parse_spec = RULES.parse
