"""``gal doctor``."""

from __future__ import annotations

import json

import click

EPILOG = """\b
Exit codes:
  0  everything that is required is there
  3  something required is missing"""

_STYLE = {"ok": "green", "warn": "yellow", "missing": "red"}


@click.command("doctor", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(as_json: bool) -> int:
    """Say what works on this machine, and how to get what does not."""
    from galoop.doctor import examine, healthy
    from galoop.errors import ExitCode

    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            status = click.style(f"{check.status:<8}", fg=_STYLE[check.status])
            click.echo(f"{status}{check.name}: {check.found}")
            if check.fix and check.status != "ok":
                click.echo(f"        {check.fix}")
    good = healthy(checks)
    if as_json:
        data = {"healthy": good, "checks": [check.to_json() for check in checks]}
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
    return ExitCode.OK if good else ExitCode.INFRASTRUCTURE
