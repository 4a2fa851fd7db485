"""``gal show``."""

from __future__ import annotations

from pathlib import Path

import click

EPILOG = """\b
Exit codes:
  0  shown
  3  infrastructure: no result in the folder, or of another version
  4  usage: a wrong flag"""


@click.command("show", epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print result.json.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["terminal", "markdown", "html", "json"]),
    default="terminal",
    show_default=True,
    help="How to show it.",
)
@click.option("--brief", is_flag=True, help="Terminal: the table and the summary only.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a file.")
def command(run: Path, as_json: bool, kind: str, brief: bool, output: Path | None) -> int:
    """Show what a run found.

    RUN is a run folder. The table has a row for each system and a column for each slice and suite
    component; below it stand the slices, the new algorithms and the gate's verdicts.
    """
    from galoop.diversity.model import read_diversity
    from galoop.report import html, markdown, terminal
    from galoop.report.model import read_result
    from galoop.report.shrunk import read_shrunk

    result = read_result(run)
    diversity = read_diversity(run, result)
    shrunk = read_shrunk(run, result)
    kind = "json" if as_json else kind
    if kind == "terminal" and output is None:
        terminal.print_result(result, brief=brief, diversity=diversity)
        return 0
    text = {
        "json": result.dumps,
        "markdown": lambda: markdown.render(result, diversity, shrunk),
        "html": lambda: html.render(result, diversity, shrunk),
        "terminal": lambda: terminal.render(result, brief=brief, diversity=diversity),
    }[kind]()
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"wrote {output}")
    return 0
