"""``gal list``."""

from __future__ import annotations

import json

import click

from galoop.plugins import GROUPS, group_of, listing

EPILOG = """\b
Exit codes:
  0  listed (a plugin that cannot be imported is listed with its error)
  4  usage: an unknown group"""


@click.command("list", epilog=EPILOG)
@click.argument("group", type=click.Choice(GROUPS))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def command(group: str, as_json: bool) -> int:
    """List domains, artifacts, models, suites, proposers or searches.

    GROUP is one of these words. Artifacts are listed with their domain. Other packages add names
    through entry points.
    """
    found = listing(group_of(group))
    if as_json:
        click.echo(json.dumps([item.to_json() for item in found], indent=1, ensure_ascii=False))
        return 0
    width = max((len(item.name) for item in found), default=0)
    domains = max((len(item.domain) for item in found), default=0)
    for item in found:
        words = f"cannot be used: {item.error}" if item.error else item.summary
        foreign = "" if item.source.startswith("galoop ") else f" [{item.source}]"
        whose = f"{item.domain:<{domains}}  " if domains else ""
        click.echo(f"{item.name:<{width}}  {whose}{words}{foreign}".rstrip())
    return 0
