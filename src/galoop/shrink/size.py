"""How large and how plain a probe program is: the order in which shrinking goes down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

_WORDS = """
red blue green black white brown gold silver big small old new long short hot cold dry wet
soft hard dark light cat dog horse bird fish cow sheep fox bear duck tree rose grass leaf stone
river lake sea hill road bridge house door window table chair bed lamp book paper pen box bag
cup plate knife fork spoon bread milk apple pear plum salt sugar coat hat shoe shirt ring clock
bell key boat car train wheel
"""

#: Words that anybody knows, to stand where a word's meaning does not matter.
PLAIN: tuple[str, ...] = tuple(_WORDS.split())
_PLAIN = frozenset(PLAIN)


@lru_cache(maxsize=2048)
def size(source: str) -> tuple[int, int, int]:
    """What has to get smaller with every step: parts, uncommon words, characters.

    Parts are nodes of the syntax tree, words of texts, and digits of numbers.

    Raises
    ------
    SyntaxError
        No Python.
    """
    tree = ast.parse(source)
    parts, rare = 0, 0
    described = _docstring(tree)
    for node in ast.walk(tree):
        parts += 1
        if isinstance(node, ast.Constant) and node is not described:
            if isinstance(node.value, str):
                parts += len(node.value.split())
            elif isinstance(node.value, int | float) and not isinstance(node.value, bool):
                parts += len(str(node.value))
    for constant in word_lists(tree):
        rare += sum(word not in _PLAIN for word in str(constant.value).split())
    return parts, rare, len(source)


def word_lists(tree: ast.Module) -> Iterator[ast.Constant]:
    """The texts that are only ever split into words: ``"…".split()``."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "split"
            and not node.args
            and isinstance(node.func.value, ast.Constant)
            and isinstance(node.func.value.value, str)
        ):
            yield node.func.value


def _docstring(tree: ast.Module) -> ast.AST | None:
    """What says in words what the program does: it stays, and counts for nothing."""
    first = tree.body[0] if tree.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None
