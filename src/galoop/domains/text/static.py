"""Checks of a text probe's source; :mod:`galoop.probing.static` has what all probes share."""

from __future__ import annotations

import ast

from galoop.domains.text.contract import ProbeRules
from galoop.probing.static import Rejection, check_nodes, parse_source


def check_source(source: str, rules: ProbeRules) -> Rejection | None:
    """Return the first static fault of ``source``, or None."""
    tree = parse_source(source, rules.max_source_chars, "build")
    return tree if isinstance(tree, Rejection) else _check_build(tree) or check_nodes(tree)


def _check_build(tree: ast.Module) -> Rejection | None:
    wanted = "def build(rng, length, count_tokens)"
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name == "build"
    ]
    if not found:
        return Rejection("no-build", f"the probe defines no build: add `{wanted}` at the top level")
    node = found[-1]
    if not isinstance(node, ast.FunctionDef):
        return Rejection(
            "wrong-signature", f"build has to be a plain function: write it as `{wanted}`"
        )
    arguments = node.args
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults)
    if len(names) != 3 or not plain:
        return Rejection(
            "wrong-signature",
            f"build takes ({ast.unparse(arguments)}) in line {node.lineno}: it has to take "
            f"exactly three positional parameters, `{wanted}`",
        )
    for inner in _own_nodes(node):
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return Rejection(
                "wrong-signature",
                f"build is a generator (line {inner.lineno}): return one dict for each call",
            )
    return None


def _own_nodes(function: ast.FunctionDef) -> list[ast.AST]:
    """Nodes of a function's body without those of functions defined within it."""
    found: list[ast.AST] = []
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            queue.extend(ast.iter_child_nodes(node))
    return found
