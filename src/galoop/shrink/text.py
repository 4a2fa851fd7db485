"""Edits of a program's text by the positions of its syntax tree, so that its layout stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence


class Source:
    """A program's text and tree.

    Positions of nodes are bytes of UTF-8; this translates them.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._bytes = text.encode("utf-8")
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Start and end of a node, in bytes."""
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    def get(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self._bytes[start:end].decode("utf-8")

    def put(self, edits: Sequence[tuple[tuple[int, int], str]]) -> str:
        """The program with spans replaced; they must not overlap."""
        data = self._bytes
        for (start, end), new in sorted(edits, reverse=True):
            data = data[:start] + new.encode("utf-8") + data[end:]
        return data.decode("utf-8")

    def replaced(self, node: ast.AST, new: str) -> str:
        """The program with one node's text replaced."""
        return self.put([(self.span(node), new)])

    def without(self, statements: Sequence[ast.stmt], block: Sequence[ast.stmt]) -> str:
        """The program without neighbouring statements of a block; an empty block gets ``pass``."""
        first, last = statements[0], statements[-1]
        start, end = self._whole(first)[0], self._whole(last)[1]
        new = ""
        if len(statements) == len(block) and block and not self._is_module(block):
            indent = " " * first.col_offset
            new = f"{indent}pass\n"
        return self.put([((start, end), new)])

    def _is_module(self, block: Sequence[ast.stmt]) -> bool:
        return block is self.tree.body

    def _whole(self, node: ast.stmt) -> tuple[int, int]:
        """A statement with its indentation, decorators, what follows it on its line, line end."""
        start, end = self.span(node)
        for decorator in getattr(node, "decorator_list", ()):
            start = min(start, self.span(decorator)[0])
        before = self._bytes.rfind(b"\n", 0, start) + 1
        if not self._bytes[before:start].strip(b" \t@"):
            start = before
        after = self._bytes.find(b"\n", end)
        after = len(self._bytes) if after < 0 else after + 1
        rest = self._bytes[end:after].strip()
        if not rest or rest.startswith(b"#"):
            end = after
        elif rest.startswith(b";"):
            end += self._bytes[end:after].index(b";") + 1
        return start, end


def without_comments(text: str) -> str:
    """The program without comments on lines of their own, and with single blank lines.

    Strings that span lines are left as they are.
    """
    inside = _lines_in_strings(text)
    kept: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if number not in inside:
            if line.lstrip().startswith("#"):
                continue
            if not line.strip() and kept and not kept[-1].strip():
                continue
        kept.append(line)
    return "\n".join(kept).strip("\n") + "\n"


def tidy(text: str) -> str:
    """Two blank lines around top-level functions, one elsewhere, no white space at line ends."""
    text = without_comments(text)
    inside = _lines_in_strings(text)
    out: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        top = re.match(r"(def|class|@)", line)
        if top and number not in inside and out and not out[-1].startswith("@"):
            while out and not out[-1].strip():
                out.pop()
            out += ["", ""]
        out.append(line if number in inside else line.rstrip())
    return "\n".join(out).strip("\n") + "\n"


def _lines_in_strings(text: str) -> set[int]:
    """Numbers of lines that belong to a string of several lines."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found
