"""The edits that shrinking tries: smaller or plainer programs, the boldest first."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from galoop.shrink.size import PLAIN, word_lists
from galoop.shrink.text import Source, without_comments

Edits = Callable[[Source], Iterator[str]]


def chunks(n: int) -> Iterator[tuple[int, int]]:
    """Spans to leave out of ``n`` things: halves, quarters, …, one by one, from the back."""
    size = n
    while size >= 1:
        for end in range(n, 0, -size):
            yield max(0, end - size), end
        size //= 2


def drop_comments(source: Source) -> Iterator[str]:
    """Leave out comments."""
    yield without_comments(source.text)


def drop_statements(source: Source) -> Iterator[str]:
    """Leave out neighbouring statements of a block."""
    for block in _blocks(source.tree):
        kept = list(block)
        if block is source.tree.body and kept and _is_text(kept[0]):
            kept = kept[1:]  # it says in words what the program does
        for start, end in chunks(len(kept)):
            part = kept[start:end]
            if any(isinstance(s, ast.FunctionDef) and s.name == "build" for s in part):
                continue
            text = source.without(part, block)
            # Annotations need not be evaluated where probes run; a reader's copy needs the import.
            if not any(_imports(s) & _names(text) for s in part):
                yield text


def drop_annotations(source: Source) -> Iterator[str]:
    """Leave out the types of parameters, results and names."""
    cuts: list[tuple[tuple[int, int], str]] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            start = source.span(node)[0] + len(node.arg.encode())
            cuts.append(((start, source.span(node.annotation)[1]), ""))
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            end = source.span(node.returns)[1]
            arrow = source.text.encode().rfind(b"->", 0, source.span(node.returns)[0])
            before = source.text.encode()[:arrow].rstrip()
            cuts.append(((len(before), end), ""))
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            cuts.append(((source.span(node.target)[1], source.span(node.annotation)[1]), ""))
    for start, end in chunks(len(cuts)):
        yield source.put(cuts[start:end])


def unwrap_statements(source: Source) -> Iterator[str]:
    """Put the body of an ``if``, or of its ``else``, in its place; an ``elif`` chain's end."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.If):
            continue
        for block in (node.body, node.orelse):
            if not block or any(s.lineno == node.lineno for s in block):
                continue
            start = source.span(block[0])[0]
            body = source.text.encode()[start : source.span(block[-1])[1]].decode("utf-8")
            shift = block[0].col_offset - node.col_offset
            lines = body.split("\n")
            moved = [lines[0], *(_dedent(line, shift) for line in lines[1:])]
            if source.get(node).startswith("if"):
                yield source.replaced(node, "\n".join(moved))


def drop_elements(source: Source) -> Iterator[str]:
    """Leave out neighbouring elements of lists and dicts, arguments, and words of word lists."""
    for constant in word_lists(source.tree):
        words = str(constant.value).split()
        for start, end in chunks(len(words)):
            left = words[:start] + words[end:]
            if left:
                yield source.replaced(constant, text_of_words(left))
    for node in ast.walk(source.tree):
        for field in ("elts", "args", "keywords", "values", "generators"):
            items = getattr(node, field, None)
            if isinstance(node, ast.Dict | ast.arguments) or not isinstance(items, list):
                continue
            if not isinstance(node, ast.expr) or isinstance(node, ast.JoinedStr) or not items:
                continue
            for start, end in chunks(len(items)):
                left = items[:start] + items[end:]
                if left or field in ("elts", "args", "keywords"):
                    yield _with(source, node, {field: left})
        if isinstance(node, ast.Dict):
            for start, end in chunks(len(node.keys)):
                changed = {f: getattr(node, f)[:start] + getattr(node, f)[end:]
                           for f in ("keys", "values")}  # fmt: skip
                yield _with(source, node, changed)


def simplify_expressions(source: Source) -> Iterator[str]:
    """Put a part of an expression in its place."""
    for node in _outside_strings(source.tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.BoolOp):
            parts = node.values
        elif isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.Call):
            parts = [a for a in node.args if not isinstance(a, ast.Starred)]
            if isinstance(node.func, ast.Attribute):
                parts.append(node.func.value)
        elif isinstance(node, ast.Subscript):
            parts = [node.value] if isinstance(node.ctx, ast.Load) else []
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            for generator in node.generators:
                for i in range(len(generator.ifs)):
                    yield source.put([_cut_condition(source, generator, i)])
        for part in parts:
            yield source.replaced(
                node, f"({source.get(part)})" if _loose(part) else source.get(part)
            )


def inline_names(source: Source) -> Iterator[str]:
    """Put a value in the place of the name that is used once."""
    for block in _blocks(source.tree):
        for statement in block:
            if not (
                isinstance(statement, ast.Assign)
                and len(statement.targets) == 1
                and isinstance(statement.targets[0], ast.Name)
            ):
                continue
            name = statement.targets[0].id
            uses = [n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id == name]
            loads = [n for n in uses if isinstance(n.ctx, ast.Load)]
            inside = _inside_strings(source.tree)
            if len(uses) != 2 or len(loads) != 1 or id(loads[0]) in inside:
                continue
            value = source.get(statement.value)
            value = f"({value})" if _loose(statement.value) else value
            after = Source(source.replaced(loads[0], value))
            again = _same_place(after.tree, statement)
            if again is not None:
                yield after.without([again[0]], again[1])


def smaller_numbers(source: Source) -> Iterator[str]:
    """Put a smaller number in a number's place."""
    for node in _outside_strings(source.tree):
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
            continue
        value = node.value
        if isinstance(value, int):
            for smaller in dict.fromkeys((0, 1, 2, value // 10, value // 2, value - 1)):
                if 0 <= smaller < value:
                    yield source.replaced(node, str(smaller))
        elif isinstance(value, float):
            for other in (0.0, 1.0, round(value, 1)):
                if len(repr(other)) <= len(repr(value)) and other != value:
                    yield source.replaced(node, f"{other:g}" if other in (0, 1) else repr(other))


def shorter_texts(source: Source) -> Iterator[str]:
    """Leave words out of texts."""
    lists = {id(constant) for constant in word_lists(source.tree)}
    inside = _inside_strings(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.JoinedStr):
            yield from _shorter_formatted(source, node)
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in lists or id(node) in inside or _is_docstring(source.tree, node):
            continue
        for text in _fewer_words(node.value):
            yield source.replaced(node, repr_text(text))


def plainer_words(source: Source) -> Iterator[str]:
    """Put common words in the place of the words of a word list."""
    constants = list(word_lists(source.tree))
    taken = {word for c in constants for word in str(c.value).split()}
    free = [word for word in PLAIN if word not in taken]

    def plain(constant: ast.Constant, pool: list[str]) -> str:
        words = str(constant.value).split()
        return text_of_words([w if w in PLAIN or not pool else pool.pop(0) for w in words])

    pool = list(free)
    yield source.put([(source.span(c), plain(c, pool)) for c in constants])
    for constant in constants:
        yield source.replaced(constant, plain(constant, list(free)))


#: In the order in which they are tried, again and again until none of them helps.
PASSES: tuple[Edits, ...] = (
    drop_comments,
    drop_annotations,
    drop_statements,
    unwrap_statements,
    drop_elements,
    simplify_expressions,
    inline_names,
    shorter_texts,
    smaller_numbers,
    plainer_words,
)


def text_of_words(words: Sequence[str], width: int = 96) -> str:
    """A string of words: on one line, or on several between triple quotes."""
    line = " ".join(words)
    if len(line) <= width - 20 and '"' not in line and "\\" not in line:
        return f'"{line}"'
    import textwrap

    body = "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False))
    return f'"""\n{body}\n"""'.replace("\\", "\\\\")


def repr_text(text: str) -> str:
    """A literal with double quotes where that needs no escapes."""
    made = repr(text)
    return f'"{made[1:-1]}"' if made[0] == "'" and '"' not in text else made


def _with(source: Source, node: ast.expr, changed: dict[str, list[Any]]) -> str:
    """The program with a node's fields changed; that node loses its layout."""
    import copy

    made = copy.copy(node)
    for field, value in changed.items():
        setattr(made, field, value)
    try:
        return source.replaced(node, ast.unparse(made))
    except (ValueError, IndexError, AttributeError):  # no such expression
        return source.text


def _shorter_formatted(source: Source, node: ast.JoinedStr) -> Iterator[str]:
    for i, part in enumerate(node.values):
        if isinstance(part, ast.Constant):
            for text in _fewer_words(str(part.value)):
                other = ast.Constant(text)
                values = [*node.values[:i], other, *node.values[i + 1 :]]
                yield _with(source, node, {"values": values})
        elif len(node.values) > 1:
            yield _with(source, node, {"values": [*node.values[:i], *node.values[i + 1 :]]})


def _fewer_words(text: str) -> Iterator[str]:
    """The text without some of its words; the white space at both ends stays."""
    words = text.split()
    if not words:
        return
    head = text[: len(text) - len(text.lstrip())]
    tail = text[len(text.rstrip()) :]
    for start, end in chunks(len(words)):
        left = words[:start] + words[end:]
        yield head + " ".join(left) + tail if left else head or tail


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _same_place(tree: ast.Module, statement: ast.stmt) -> tuple[ast.stmt, list[ast.stmt]] | None:
    """The statement that begins where another one began, with its block."""
    place = (statement.lineno, statement.col_offset)
    for block in _blocks(tree):
        for other in block:
            if (other.lineno, other.col_offset) == place:
                return other, block
    return None


def _inside_strings(tree: ast.AST) -> set[int]:
    """Nodes within f-strings: their positions are not to be relied on before Python 3.12."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for inner in ast.walk(node)
        if inner is not node
    }


def _outside_strings(tree: ast.Module) -> Iterator[ast.AST]:
    inside = _inside_strings(tree)
    return (node for node in ast.walk(tree) if id(node) not in inside)


def _cut_condition(
    source: Source, generator: ast.comprehension, i: int
) -> tuple[tuple[int, int], str]:
    condition = generator.ifs[i]
    before = generator.ifs[i - 1] if i else generator.iter
    return (source.span(before)[1], source.span(condition)[1]), ""


def _loose(node: ast.expr) -> bool:
    """Whether it needs brackets in another expression."""
    tight = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.List, ast.Dict,
             ast.JoinedStr, ast.ListComp, ast.Set)  # fmt: skip
    return not isinstance(node, tight)


def _imports(statement: ast.stmt) -> set[str]:
    """Names that an import brings."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}


def _names(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_docstring(tree: ast.Module, node: ast.Constant) -> bool:
    return any(
        block and _is_text(block[0]) and getattr(block[0], "value", None) is node
        for block in _blocks(tree)
    )


def _dedent(line: str, by: int) -> str:
    return line[by:] if not line[:by].strip() else line
