"""Words and TOML for the experiment file: comments, allowed values, error lines."""

from __future__ import annotations

import difflib
import json
import textwrap
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from galoop.config import ExperimentConfig, Knob, knobs, sections

_WIDTH = 96
_HEADER = """\
# An experiment of galoop. Every key shows its default; a key that is left out keeps it.
# Each key is also a flag of `gal loop`, `gal discover` and `gal improve`:
# `max_candidates` in [discriminator] is `--discriminator.max-candidates`.
# A key marked (free) may change when a run is resumed; the others must stay as they are.
"""


def render(config: ExperimentConfig) -> str:
    """``config`` as a commented TOML file; deterministic."""
    lines = [_HEADER.rstrip()]
    tables = sections()
    current = None
    for knob in knobs():
        if knob.budget and knob.get(config) is None:
            continue  # another domain's
        if knob.section != current:
            current = knob.section
            doc = (tables[current].__doc__ or "").strip().splitlines()[0] if current else ""
            lines += ["", *([f"# {doc}"] if doc else []), *([f"[{current}]"] if current else [])]
        lines += _entry(knob, knob.get(config))
    return "\n".join(lines) + "\n"


def _entry(knob: Knob, value: Any) -> list[str]:
    mark = " (free)" if knob.free else ""
    allowed = "" if knob.allowed == "text" else f" Allowed: {knob.allowed}."
    comment = f"{knob.description}{allowed}{mark}"
    lines = textwrap.wrap(
        comment, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
    )
    if value is None:
        return [*lines, f"# {knob.name} =   # not set"]
    return [*lines, f"{knob.name} = {toml_value(value)}"]


def toml_value(value: Any) -> str:
    """A bool, int, float, str or sequence of str in TOML's spelling."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are a subset of TOML's, except DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def allowed_values(field: FieldInfo) -> str:
    """What a field may hold, in words: ``a number from 0 to 1``."""
    annotation, metadata = field.annotation, list(field.metadata)
    if get_origin(annotation) in (Union, types.UnionType):
        inner = next(a for a in get_args(annotation) if a is not type(None))
        extra = field.json_schema_extra
        unset = extra.get("unset", "no cap") if isinstance(extra, dict) else "no cap"
        return _describe(inner, metadata) + f", or leave it out for {unset}"
    return _describe(annotation, metadata)


def _describe(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(a) for a in get_args(annotation))
    if hasattr(annotation, "__metadata__"):  # Annotated inside an optional
        inner = get_args(annotation)
        for extra in inner[1:]:
            metadata += list(extra.metadata) if isinstance(extra, FieldInfo) else [extra]
        annotation = inner[0]
    if get_origin(annotation) is tuple:
        return "a list of names"
    bounds = _bounds(metadata)
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return "a whole number" + bounds
    if annotation is float:
        return "a number" + bounds
    pattern = next((m.pattern for m in metadata if getattr(m, "pattern", None)), None)
    return f"text that matches {pattern}" if pattern else "text"


def _bounds(metadata: list[Any]) -> str:
    found = {
        name: getattr(item, name)
        for item in metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(item, name, None) is not None
    }
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    parts = [f"{words[name]} {value:g}" for name, value in found.items()]
    return (" " + " and ".join(parts)) if parts else ""


def explain(error: ValidationError, source: str, overrides: Mapping[str, Any]) -> list[str]:
    """One line for each error of ``error``: where, what was given, what is allowed."""
    by_key = {knob.key: knob for knob in knobs()}
    lines = []
    for item in error.errors(include_url=False):
        if item["type"] == "budget_key":
            given = item["ctx"]["key"] in overrides
            where = f"flag {by_key[item['ctx']['key']].flag}" if given else source
            lines.append(
                f"{where}: {item['ctx']['key']} is not a budget of this domain; {item['msg']}"
            )
            continue
        # Items of a list and branches of an optional add parts to the location: two are ours.
        parts = [str(part) for part in item["loc"]]
        key = ".".join(parts[: 2 if parts and parts[0] in sections() else 1])
        knob = by_key.get(key)
        where = f"flag {knob.flag}" if knob and key in overrides else source
        line = _line(where, key, item, knob)
        if line not in lines:
            lines.append(line)
    return lines


def _line(where: str, key: str, item: Mapping[str, Any], knob: Knob | None) -> str:
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key {key}{_suggest(key)}"
    given = json.dumps(item["input"], ensure_ascii=False, default=str)
    if key.endswith("api_base"):
        given = "…"  # it may hold a key
    given = given if len(given) <= 80 else given[:77] + "..."
    if knob is None:
        return f"{where}: [{key}] must be a table, not {given}"
    return f"{where}: {key} = {given}: not allowed; give {knob.allowed}"


def _suggest(key: str) -> str:
    """``; did you mean …?``, from the same table first, then from the others."""
    section, _, name = key.rpartition(".")
    tables = sections()
    siblings = [k.name for k in knobs() if k.section == section]
    if not section:
        siblings += list(tables)
    close = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if close:
        found = f"{section}.{close[0]}" if section else close[0]
        return f"; did you mean {found}?"
    elsewhere = [k.key for k in knobs() if k.name == name]
    if elsewhere:
        return f"; it belongs in another table: {', '.join(elsewhere)}"
    return f"; allowed {f'in [{section}]' if section else 'here'}: {', '.join(siblings)}"
