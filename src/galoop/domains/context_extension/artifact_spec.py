"""What a position-plan artifact may state: see :mod:`galoop.domains.text.artifact_spec`."""

from __future__ import annotations

from galoop.domains.text.artifact_spec import SpecRules

DOMAIN = "context-extension"
#: ``extension`` is the length that has to be reached, in native windows.
RULES = SpecRules(
    domain=DOMAIN,
    entry="plan.py:build_plan",
    signature="def build_plan(shape: Shape, length: int) -> Plan",
    budget={"extension": (1.0, 1025.0)},
    required={"extension": "state how many native windows to reach, for example 4"},
)

#: Checks an artifact's files and reads its manifest.
parse_spec = RULES.parse
