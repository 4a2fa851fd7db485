"""What a position-plan artifact may state: see :mod:`galoop.domains.text.artifact_spec`."""

from __future__ import annotations

from collections.abc import Mapping

from galoop.domains.text import artifact_spec
from galoop.domains.text.artifact_spec import ArtifactSpec, SpecRules

DOMAIN = "context-extension"
#: ``extension`` is the length that has to be reached, in native windows.
RULES = SpecRules(
    domain=DOMAIN,
    entry="plan.py:build_plan",
    signature="def build_plan(shape: Shape, length: int) -> Plan",
    budget={"extension": (1.0, 1025.0)},
    required={"extension": "state how many native windows to reach, for example 4"},
)


def parse_spec(files: Mapping[str, str]) -> ArtifactSpec:
    """Check a plan artifact's files and read its manifest.

    Raises
    ------
    ArtifactError
        With the file, the table and the key that are wrong.
    """
    return artifact_spec.parse_spec(files, RULES)
