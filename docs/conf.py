"""Sphinx configuration, and two directives that keep the pages equal to the code."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

project = "galoop"
author = "The galoop authors"
copyright = "The galoop authors"
version = release = installed_version("galoop")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_title = f"galoop {version}"
html_show_copyright = False
myst_enable_extensions = ["colon_fence", "deflist", "smartquotes"]
myst_heading_anchors = 3
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_type_aliases = {"Event": "Event"}


class Constant(SphinxDirective):
    """``{constant} package.module:NAME``: a text of the code; ``:as: markdown`` or ``literal``."""

    required_arguments = 1
    option_spec = {"as": str}  # noqa: RUF012 - docutils reads a plain class attribute

    def run(self) -> list[nodes.Node]:
        """Put the text in."""
        module, _, name = self.arguments[0].partition(":")
        text: Any = getattr(import_module(module), name)
        if self.options.get("as", "literal") == "literal":
            return [nodes.literal_block(text, text, language="text")]
        return parsed(self, text)


class Knobs(SphinxDirective):
    """``{knobs}``: every key of the experiment file, table by table."""

    def run(self) -> list[nodes.Node]:
        """Write the tables from the models."""
        from galoop._toml import toml_value
        from galoop.config import knobs, sections

        lines: list[str] = []
        tables = {"": "At the top of the file."}
        for name, model in sections().items():
            tables[name] = (model.__doc__ or "").strip().splitlines()[0]
        for table, words in tables.items():
            lines += ["", f"**{f'[{table}]' if table else 'top level'}** {words}", ""]
            lines += ["| key | default | allowed | what it is |", "| --- | --- | --- | --- |"]
            for knob in knobs():
                if knob.section != table:
                    continue
                empty = knob.unset if knob.budget else "not set"
                default = empty if knob.default is None else f"`{toml_value(knob.default)}`"
                free = " *(free)*" if knob.free else ""
                allowed = knob.allowed.replace("|", "\\|")
                if "matches" in allowed:
                    head, _, pattern = allowed.rpartition(" ")
                    allowed = f"{head} `{pattern}`"
                lines.append(
                    f"| `{knob.name}` | {default} | {allowed} | {knob.description}{free} |"
                )
        return parsed(self, "\n".join(lines))


def parsed(directive: SphinxDirective, text: str) -> list[nodes.Node]:
    """Markdown as nodes."""
    box = nodes.container()
    content = StringList(text.splitlines(), source="generated")
    directive.state.nested_parse(content, directive.content_offset, box)
    return box.children


def plain_bars(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Bars in docstrings are absolute values, not substitutions."""
    for i, line in enumerate(lines):
        if "`" not in line:
            lines[i] = re.sub(r"(?<!\\)\|", r"\|", line)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("constant", Constant)
    app.add_directive("knobs", Knobs)
    app.connect("autodoc-process-docstring", plain_bars)
    return {"parallel_read_safe": True}
