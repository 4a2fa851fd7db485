"""Read expressions such as ``AdaKVPress(CompactorPress(sink_size_start=4))`` without ``eval``.

An expression is one call of a press class of kvpress whose arguments are literals, lists, tuples,
dicts and further such calls.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from galoop.domains.kv_compression.artifact_spec import did_you_mean
from galoop.errors import ArtifactError, UnknownNameError

if TYPE_CHECKING:
    from kvpress import BasePress

#: Arguments by which an expression states its own compression.
_RATIO_ARGUMENTS = (
    "compression_ratio",
    "compression_ratios",
    "key_channel_compression_ratio",
    "head_compression_ratio",
    "threshold",
    "target_size",
)
_MAX_LENGTH = 2000


@dataclass(frozen=True)
class PressExpression:
    """A checked press expression.

    Attributes
    ----------
    source : str
        Normalised text.
    classes : tuple of str
        The press classes it names, sorted.
    states_ratio : bool
        Whether it gives a compression ratio (or a threshold) itself.
    """

    source: str
    classes: tuple[str, ...]
    states_ratio: bool


def press_classes() -> dict[str, type[BasePress]]:
    """The press classes that kvpress exports, by name, without the abstract ones."""
    import kvpress

    found = {}
    abstract = (kvpress.BasePress, kvpress.ScorerPress)
    for name in kvpress.__all__:
        value = getattr(kvpress, name)
        if (
            inspect.isclass(value)
            and issubclass(value, kvpress.BasePress)
            and value not in abstract
        ):
            found[name] = value
    return found


def looks_like_expression(text: str) -> bool:
    """Whether ``text`` is meant as a press expression rather than as a name or path."""
    head = text.strip().partition("(")[0]
    return "(" in text and head.strip().isidentifier()


def parse_expression(text: str) -> PressExpression:
    """Check a press expression.

    Raises
    ------
    UnknownNameError
        A name that is no press class of kvpress.
    ArtifactError
        A syntax error, anything but calls of presses and literals, or arguments that the press
        does not take.
    """
    if len(text) > _MAX_LENGTH:
        raise ArtifactError(f"the press expression is longer than {_MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArtifactError(
            f"press expression {text!r} does not parse: {error}",
            "write for example 'AdaKVPress(CompactorPress())'",
        ) from None
    if not isinstance(tree.body, ast.Call):
        raise ArtifactError(
            f"press expression {text!r} is not a call of a press",
            "write for example 'KnormPress()'",
        )
    known = press_classes()
    names: set[str] = set()
    keywords: set[str] = set()
    _check_node(tree.body, known, names, keywords)
    states = bool(keywords & set(_RATIO_ARGUMENTS))
    expression = PressExpression(ast.unparse(tree.body), tuple(sorted(names)), states)
    build_expression(expression)  # what the press itself refuses is refused here, in its words
    return expression


def build_expression(expression: PressExpression) -> BasePress:
    """The press that a checked expression stands for, without a budget set."""
    try:
        return _build(ast.parse(expression.source, mode="eval").body, press_classes())
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        raise ArtifactError(
            f"press expression {expression.source!r}: {error or type(error).__name__}",
            "see the press's documentation in kvpress",
        ) from None


def ratio_settable(press: BasePress) -> bool:
    """Whether ``press.compression_ratio = r`` means something for this press."""
    from kvpress import ComposedPress

    if isinstance(press, ComposedPress):  # stores the number and uses none of it
        return False
    if not hasattr(type(press), "compression_ratio"):
        return "compression_ratio" in vars(press)
    try:
        press.compression_ratio = press.compression_ratio
    except (AttributeError, AssertionError, ValueError, TypeError):
        return False
    return True


def _check_node(
    node: ast.expr, known: Mapping[str, type[BasePress]], names: set[str], keywords: set[str]
) -> None:
    if isinstance(node, ast.Call):
        _check_call(node, known, names, keywords)
    elif isinstance(node, (ast.List, ast.Tuple)):
        for item in node.elts:
            _check_node(item, known, names, keywords)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            if key is None:
                raise ArtifactError("press expression: '**' is not allowed")
            _check_node(key, known, names, keywords)
        for item in node.values:
            _check_node(item, known, names, keywords)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        if not isinstance(node.operand, ast.Constant):
            raise ArtifactError(f"press expression: {ast.unparse(node)!r} is not a literal")
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, (int, float, str, bool, type(None))):
            raise ArtifactError(f"press expression: {ast.unparse(node)!r} is not allowed")
    elif isinstance(node, ast.Name):
        hint = f"write {node.id}()" if node.id in known else did_you_mean(node.id, known)
        raise UnknownNameError(f"press expression: {node.id!r} is not a literal", hint)
    else:
        raise ArtifactError(
            f"press expression: {ast.unparse(node)!r} is not allowed",
            "only presses of kvpress, literals, lists and keyword arguments are",
        )


def _check_call(
    node: ast.Call, known: Mapping[str, type[BasePress]], names: set[str], keywords: set[str]
) -> None:
    if not isinstance(node.func, ast.Name):
        raise ArtifactError(
            f"press expression: {ast.unparse(node.func)!r} may not be called",
            "call presses of kvpress by their plain names",
        )
    name = node.func.id
    if name not in known:
        raise UnknownNameError(
            f"press expression: kvpress has no press {name!r}", did_you_mean(name, known)
        )
    names.add(name)
    accepted = [p for p in inspect.signature(known[name]).parameters if not p.startswith("_")]
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ArtifactError("press expression: '**' is not allowed")
        if keyword.arg not in accepted:
            raise ArtifactError(
                f"press expression: {name} takes no argument {keyword.arg!r}",
                did_you_mean(keyword.arg, accepted),
            )
        keywords.add(keyword.arg)
        _check_node(keyword.value, known, names, keywords)
    if len(node.args) > len(accepted):
        raise ArtifactError(
            f"press expression: {name} takes at most {len(accepted)} arguments",
            "it takes " + ", ".join(accepted),
        )
    for argument, parameter in zip(node.args, accepted, strict=False):
        keywords.add(parameter)
        _check_node(argument, known, names, keywords)


def _build(node: ast.expr, known: Mapping[str, type[BasePress]]) -> Any:
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        arguments = [_build(item, known) for item in node.args]
        named = {str(k.arg): _build(k.value, known) for k in node.keywords}
        return known[node.func.id](*arguments, **named)
    if isinstance(node, ast.List):
        return [_build(item, known) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_build(item, known) for item in node.elts)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_build(k, known): _build(v, known) for k, v in pairs if k is not None}
    return ast.literal_eval(node)
