"""Checks of a probe's source that need not run it.

They give an early, readable reason. They are no barrier: the sandbox is.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

ALLOWED_MODULES: tuple[str, ...] = (
    "__future__",
    "collections",
    "dataclasses",
    "datetime",
    "functools",
    "itertools",
    "math",
    "random",
    "re",
    "string",
    "textwrap",
    "typing",
)
"""Standard modules a probe may import. The sandbox is the barrier; this keeps probes readable."""

_FORBIDDEN_CALLS = frozenset(
    {
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "exit",
        "globals",
        "id",
        "input",
        "locals",
        "open",
        "quit",
        "setattr",
        "vars",
    }
)
# Their results change from one run to the next without changing between two runs of one second.
_CLOCK = frozenset({"now", "today", "utcnow"})
_UNSEEDED = frozenset({"SystemRandom"})


@dataclass(frozen=True)
class Rejection:
    """Why a probe was turned down.

    ``code`` is one stable word for records and for learning proposers; ``reason`` is for reading
    and says what to do.
    """

    code: str
    reason: str


def parse_source(source: str, most_chars: int, function: str) -> ast.Module | Rejection:
    """The syntax tree of a probe that is to define ``function``, or why there is none."""
    if not isinstance(source, str) or not source.strip():
        return Rejection(
            "empty", f"the probe is empty: write a Python file that defines {function}"
        )
    if len(source) > most_chars:
        return Rejection(
            "too-long-source",
            f"the probe has {len(source)} characters, at most {most_chars} are "
            "allowed: generate the text in code instead of spelling it out",
        )
    try:
        with warnings.catch_warnings():
            # A bad escape in a candidate is no message to our user.
            warnings.simplefilter("ignore")
            return ast.parse(source, filename="probe.py")
    except SyntaxError as error:
        where = f" (line {error.lineno})" if error.lineno else ""
        return Rejection(
            "syntax",
            f"the probe does not parse: {error.msg}{where}: correct the syntax of the file",
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return Rejection(
            "syntax", f"the probe does not parse: {error}: write a plain, smaller Python file"
        )


def check_nodes(tree: ast.Module) -> Rejection | None:
    """The first import, call or attribute that a probe may not use, or None."""
    has_clock = any(
        isinstance(node, ast.Import | ast.ImportFrom) and "datetime" in ast.unparse(node)
        for node in ast.walk(tree)
    )
    for node in ast.walk(tree):
        fault = None
        if isinstance(node, ast.Import):
            fault = _check_import([alias.name for alias in node.names], node.lineno)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            fault = _check_import([module], node.lineno) or _check_imported(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # Calls only: `id` and `input` are popular names of variables.
            if node.func.id in _FORBIDDEN_CALLS:
                fault = _not_allowed(node.func.id, node.lineno)
        elif isinstance(node, ast.Attribute):
            fault = _check_attribute(node, has_clock)
        if fault is not None:
            return fault
    return None


def _check_import(modules: list[str], line: int) -> Rejection | None:
    for module in modules:
        if module.split(".")[0] not in ALLOWED_MODULES:
            return Rejection(
                "import",
                f"the probe imports {module} in line {line}: only "
                f"{', '.join(ALLOWED_MODULES[1:])} may be imported",
            )
    return None


def _check_imported(node: ast.ImportFrom) -> Rejection | None:
    for alias in node.names:
        if alias.name in _UNSEEDED:
            return _unseeded(alias.name, node.lineno)
    return None


def _check_attribute(node: ast.Attribute, has_clock: bool) -> Rejection | None:
    name = node.attr
    if name in _UNSEEDED:
        return _unseeded(name, node.lineno)
    if has_clock and name in _CLOCK:
        return Rejection(
            "not-deterministic",
            f"the probe reads the clock (.{name} in line {node.lineno}): start from a fixed date, "
            "so that the same seed gives the same example tomorrow",
        )
    if name.startswith("__") and name.endswith("__") and name not in ("__name__", "__init__"):
        return _not_allowed(name, node.lineno)
    return None


def _unseeded(name: str, line: int) -> Rejection:
    return Rejection(
        "not-deterministic",
        f"the probe uses {name} in line {line}, which no seed reaches: use the rng argument",
    )


def _not_allowed(name: str, line: int) -> Rejection:
    return Rejection(
        "not-allowed",
        f"the probe uses {name} in line {line}, which probes may not: build the text from rng, "
        "strings and lists alone",
    )
