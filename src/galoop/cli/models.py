"""``gal models``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

EPILOG = """\b
Exit codes:
  0  done
  3  infrastructure: no network, a wrong hash, a full disk
  4  usage: an unknown name"""


@click.group("models", epilog=EPILOG)
def command() -> None:
    """Fetch and list models."""


@command.command("fetch", epilog=EPILOG)
@click.argument("name")
@click.option("--dtype", default="auto", show_default=True, help="Kept with every result.")
@click.option("--json", "as_json", is_flag=True, help="Print what was fetched as JSON.")
def fetch_command(name: str, dtype: str, as_json: bool) -> int:
    """Fetch a model into the cache folder, once; offline ever after."""
    from galoop.models import fetch

    def say(text: str) -> None:
        click.echo(text, err=True)

    info = fetch(name, dtype=dtype, progress=say)
    if as_json:
        click.echo(json.dumps(asdict(info), indent=1, default=str))
    else:
        click.echo(f"{info.name}: {info.path} ({info.dtype}, window {info.window} tokens)")
    return 0


@command.command("list", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def list_command(ctx: click.Context, as_json: bool) -> int:
    """List the models that are known by name."""
    from galoop.cli.list import command as list_names

    result: int = ctx.invoke(list_names, group="models", as_json=as_json)
    return result
