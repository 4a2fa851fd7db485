"""Keeps keys out of everything that is written: values of the environment that look like one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote

_NAME = re.compile(r"KEY|TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|AUTH(?!OR)", re.I)
_SHORTEST = 8
_MASK = "[redacted]"


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """``text`` without any value of an environment variable whose name speaks of a secret.

    Error messages and answers of a server may quote what was sent to it. Values of fewer than
    eight characters stay: they would match ordinary words.
    """
    source = os.environ if environment is None else environment
    values = {v.strip() for name, v in source.items() if _NAME.search(name)}
    forms = {form for v in values if len(v) >= _SHORTEST for form in (v, quote(v, safe=""))}
    for value in sorted(forms, key=len, reverse=True):
        text = text.replace(value, _MASK)
    return text


def clean(text: str) -> str:
    """Redacted text that can be stored: half surrogate pairs are replaced."""
    return redact(text.encode("utf-8", "replace").decode("utf-8"))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process that needs no key."""
    return {name: value for name, value in environment.items() if not _NAME.search(name)}
