"""The documentation's commands run, its names exist, and its tables are complete.

A console block that follows ``<!-- test -->`` is run: its ``$`` lines in order, all blocks of a
page in one folder. Lines below a command must occur in its output, in order; ``…`` stands for
anything. ``<!-- test loop -->`` marks blocks that run a loop on the fast model;
``<!-- test fails 4 -->`` blocks that must end with that code.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from galoop.cli.main import COMMANDS
from galoop.errors import ExitCode

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
BLOCK = re.compile(
    r"<!-- test(?: (?P<how>[a-z0-9 ]+))? -->\n```console\n(?P<body>.*?)^```", re.S | re.M
)
LOOP = re.compile(r"^gal (loop|discover|improve|replay|show)\b")


@dataclass
class Step:
    """One command, the lines that its output must hold, and its exit code."""

    command: str
    code: int = 0
    expected: list[str] = field(default_factory=list)


def steps(page: Path) -> list[Step]:
    """The commands of a page's tested blocks."""
    found: list[Step] = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        how = (match["how"] or "").split()
        code = int(how[1]) if how[:1] == ["fails"] else 0
        for line in match["body"].splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:], code))
            else:
                found[-1].expected.append(line)
    return found


FAST = ROOT / "src" / "galoop" / "models" / "fast" / "model.safetensors"
TESTED = [page for page in PAGES if steps(page)]


def in_order(lines: list[str], output: str) -> bool:
    """Whether the lines occur in the output one after the other."""
    pattern = ".*".join(".*".join(re.escape(p) for p in line.split("…")) for line in lines)
    return re.search(pattern, output, re.S) is not None


@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_commands_of_the_page_run(page: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    for step in steps(page):
        wanted = LOOP.match(step.command) and step.code == 0
        if wanted and not FAST.is_file():
            pytest.skip("this checkout has no fast model")
        found = subprocess.run(
            ["bash", "-o", "pipefail", "-c", step.command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        output = found.stdout + found.stderr
        assert found.returncode == step.code, f"$ {step.command}\n{output}"
        assert in_order(step.expected, output), f"$ {step.command}\n{output}"


def test_there_are_commands_to_run() -> None:
    assert len(TESTED) >= 4
    assert sum(len(steps(page)) for page in TESTED) >= 12


def console_lines() -> list[tuple[str, str]]:
    """(page, command) for each ``gal`` line of every console block, tested or not."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
            found += [(page.name, line[2:]) for line in block.splitlines() if line[:6] == "$ gal "]
    return found


@pytest.mark.parametrize(("page", "command"), console_lines())
def test_every_flag_in_the_documentation_exists(page: str, command: str) -> None:
    import click

    from galoop.cli.main import gal

    words = re.split(r"[\s|]+", command.split(" | ")[0])
    found: click.Command | None = gal.get_command(click.Context(gal), words[1])
    assert found is not None, command
    if isinstance(found, click.Group):
        found = found.get_command(click.Context(found), words[2])
        assert found is not None, command
    flags = {flag for p in found.params for flag in (*p.opts, *p.secondary_opts)}
    for word in words:
        if word.startswith("-") and word not in ("-", "--help", "--discriminator.lenght"):
            assert word in flags, f"{page}: {command}"


def test_every_command_has_its_page_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert (ROOT / "docs" / "commands" / f"{name}.md").is_file(), name
        assert f"commands/{name}\n" in index, name


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(
            rf"^\| {int(code)} \| {code.name.lower().replace('_', ' ')} \|", text, re.M
        )


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#]+)", text) if not t.startswith("http")]
    assert len(targets) >= 4
    for target in targets:
        assert (ROOT / target).is_file(), target


def test_make_targets_named_in_the_documentation_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)`|\$ make ([a-z-]+)", page.read_text("utf-8")):
            name = "".join(target)
            assert re.search(rf"^{name}:", makefile, re.M), f"{page.name}: make {name}"


def test_constants_and_modules_named_in_the_documentation_exist() -> None:
    from importlib import import_module

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for module, name in re.findall(r"\{constant\} ([\w.]+):(\w+)", text):
            assert isinstance(getattr(import_module(module), name), str)
        for module in re.findall(r"automodule:: ([\w.]+)", text):
            assert importlib.util.find_spec(module) is not None, module


def test_nothing_names_the_machine_it_was_written_on() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/work/|/tmp/|/root/|\.internal\b", text), page
