"""``gal diversity``."""

from __future__ import annotations

from pathlib import Path

import click

EPILOG = """\b
Exit codes:
  0  shown
  3  infrastructure: no result in the folder, a changed slice, a package with other weights
  4  usage: a wrong flag, an extra that is not installed, a replay of another slice
  5  nothing to compare: the run admitted no slice and refined no candidate"""


@click.command("diversity", epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--embedding",
    type=click.Choice(["minilm", "words", "none"]),
    default="minilm",
    show_default=True,
    help="minilm: all-MiniLM-L6-v2 (extra `diversity`); words: counts of words, no extra.",
)
@click.option(
    "--replay",
    "replays",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Output of `gal replay RUN/benchmark/B1 … --json`: further methods. May be repeated.",
)
@click.option(
    "--judge",
    metavar="MODULE:FUNCTION",
    help="A callable from text to text, asked how different every two probes are.",
)
@click.option("--searches", is_flag=True, help="Also compare the scored probes of every search.")
@click.option("--save", is_flag=True, help="Keep it in the run folder and in the run's reports.")
def command(
    run: Path,
    as_json: bool,
    embedding: str,
    replays: tuple[Path, ...],
    judge: str | None,
    searches: bool,
    save: bool,
) -> int:
    """Say how different the probes of a run are.

    RUN is a run folder. Compared are its slices and, after a search with islands, the best
    candidate of every island: by what their programs and examples say, by which systems they
    break, and by a language model's opinion where one is given. Figures are reported and never
    optimised.
    """
    from galoop.diversity.embedding import EMBEDDINGS
    from galoop.diversity.judge import load_judge
    from galoop.diversity.measure import measure
    from galoop.diversity.save import save_diversity
    from galoop.diversity.view import print_report

    report = measure(
        run,
        EMBEDDINGS[embedding]() if embedding in EMBEDDINGS else None,
        replays=replays,
        judge=load_judge(judge) if judge else None,
        judge_name=judge or "",
        searches=searches,
    )
    if save:
        save_diversity(run, report)
    if as_json:
        click.echo(report.dumps(), nl=False)
    else:
        print_report(report)
    return 0
