"""What a selector artifact may state: see :mod:`galoop.domains.text.artifact_spec` for the rest."""

from __future__ import annotations

import math

from galoop.domains.text.artifact_spec import MANIFEST, ArtifactSpec, SpecRules, did_you_mean

__all__ = ["DOMAIN", "MANIFEST", "RULES", "ArtifactSpec", "did_you_mean", "parse_spec"]

DOMAIN = "sparse-decoding"
_ONE = math.nextafter(1.0, 2.0)
#: ``density`` is the fraction of the entries a row sees that it may attend to; ``sparse_question``
#: is 1 where the rows of the question are sparse too; ``index_fraction`` is the most bytes of an
#: index, relative to the keys of the context.
RULES = SpecRules(
    domain=DOMAIN,
    entry="selector.py:build_selector",
    signature="def build_selector(density: float) -> Selector",
    budget={
        "density": (1e-6, _ONE),
        "sparse_question": (0.0, _ONE),
        "index_fraction": (0.0, math.inf),
    },
    required={"density": "state the fraction of entries to attend to, for example 0.02"},
)

#: Checks an artifact's files and reads its manifest.
parse_spec = RULES.parse
