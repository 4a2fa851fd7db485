"""Generic mutations of a probe program that the grammar did not write.

Works on Python's own syntax tree: integers, floats, lists of strings and words inside strings are
changed; the structure stays. Formatting and comments of the original are lost.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass

MAX_CHARACTERS = 40_000


@dataclass(frozen=True)
class Edited:
    """A mutated source and what was changed, in words."""

    source: str
    note: str


def mutate(source: str, rng: random.Random) -> Edited | None:
    """Change one thing in ``source``; None where it does not parse or has nothing to change."""
    if len(source) > MAX_CHARACTERS or "\0" in source:
        return None
    try:
        module = ast.parse(source)
        sites = _sites(module)
        if not sites:
            return None
        action, node = rng.choice(sites)
        note = _ACTIONS[action](node, rng)
        changed = ast.unparse(ast.fix_missing_locations(module)) + "\n"
        ast.parse(changed)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return Edited(changed, f"edit the source: {note}")


def _sites(module: ast.Module) -> list[tuple[str, ast.AST]]:
    sites: list[tuple[str, ast.AST]] = []
    documentation = set()
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            documentation.add(id(body[0].value))
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            if isinstance(node.value, int) and not isinstance(node.value, bool):
                sites.append(("number", node))
            elif isinstance(node.value, float):
                sites.append(("fraction", node))
        elif isinstance(node, ast.List | ast.Tuple) and 2 < len(node.elts) == len(_constants(node)):
            sites += [("shuffle", node), ("drop", node)]
            if all(isinstance(item.value, str) for item in _constants(node)):
                sites.append(("swap", node))
    return sites


def _constants(node: ast.List | ast.Tuple) -> list[ast.Constant]:
    return [item for item in node.elts if isinstance(item, ast.Constant)]


def _number(node: ast.AST, rng: random.Random) -> str:
    assert isinstance(node, ast.Constant)
    old = node.value
    assert isinstance(old, int)
    options = {old + 1, max(0, old - 1), old * 2, old // 2} - {old}
    if abs(old) > 10**15:
        options = {old + 1}
    node.value = rng.choice(sorted(options))
    return f"{old} became {node.value}"


def _fraction(node: ast.AST, rng: random.Random) -> str:
    assert isinstance(node, ast.Constant)
    old = node.value
    assert isinstance(old, float)
    node.value = round(old * rng.choice((0.25, 0.5, 0.75, 1.25, 1.5)) + rng.choice((0.0, 0.1)), 3)
    return f"{old} became {node.value}"


def _shuffle(node: ast.AST, rng: random.Random) -> str:
    assert isinstance(node, ast.List | ast.Tuple)
    rng.shuffle(node.elts)
    return "another order of a list"


def _drop(node: ast.AST, rng: random.Random) -> str:
    assert isinstance(node, ast.List | ast.Tuple)
    node.elts.pop(rng.randrange(len(node.elts)))
    return "one item fewer in a list"


def _swap(node: ast.AST, rng: random.Random) -> str:
    """Two strings of one list exchange one word."""
    assert isinstance(node, ast.List | ast.Tuple)
    first, second = rng.sample(_constants(node), 2)
    left, right = str(first.value).split(" "), str(second.value).split(" ")
    i, j = rng.randrange(len(left)), rng.randrange(len(right))
    left[i], right[j] = right[j], left[i]
    first.value, second.value = " ".join(left), " ".join(right)
    return "two strings of a list exchanged a word"


_ACTIONS = {
    "number": _number,
    "fraction": _fraction,
    "shuffle": _shuffle,
    "drop": _drop,
    "swap": _swap,
}
