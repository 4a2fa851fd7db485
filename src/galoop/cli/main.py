"""``gal``: the group of commands, and what happens to errors.

Commands are imported when they are called, so that ``gal --help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

from galoop.errors import ExitCode, GaloopError

#: Command -> (module, one line). The module defines ``command``. A test keeps the lines equal to
#: the commands' own help.
COMMANDS: dict[str, tuple[str, str]] = {
    "loop": ("loop", "Run rounds of discriminator and generator: the whole loop."),
    "discover": ("discover", "Search for a slice that breaks an artifact (the discriminator)."),
    "improve": ("improve", "Search for an artifact that repairs slices (the generator)."),
    "init": ("init", "Write a commented experiment file."),
    "show": ("show", "Show what a run found."),
    "diversity": ("diversity", "Say how different the probes of a run are."),
    "replay": ("replay", "Run a slice against any artifact and model."),
    "scope": ("scope", "Measure how a slice's failure depends on budget, length and depth."),
    "matrix": ("matrix", "Run every slice against every artifact and model."),
    "shrink": ("shrink", "Make a slice's probe as small and plain as it can be."),
    "list": ("list", "List domains, artifacts, models, suites, proposers or searches."),
    "models": ("models", "Fetch and list models."),
    "doctor": ("doctor", "Say what works on this machine, and how to get what does not."),
}

EXIT_CODES = """\b
Exit codes: 0 done, 1 failed, 2 interrupted, 3 infrastructure,
4 usage, 5 nothing evaluated, 6 inconclusive."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"galoop.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table above: nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion for a command that does not exist."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(COMMANDS)}"
            raise click.UsageError(f"unknown command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=LazyGroup,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="galoop", prog_name="galoop")
def gal() -> None:
    """Find the inputs on which an approximation of a model breaks, freeze them, and repair it.

    Start with `gal doctor`, then `gal init` and `gal loop experiment.toml`.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Entry point: run ``gal`` and exit with a documented code."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run ``gal``; errors become one line each on stderr, and an exit code."""
    # OpenMP threads that spin for long while they wait slow two processes on few cores down
    # tenfold; ones that sleep at once make a single process three times slower. A short spin costs
    # neither. Must be set before torch is imported, and a user's own choice wins.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        result = gal.main(args=list(args) if args is not None else None, standalone_mode=False)
        return int(result) if isinstance(result, int) else ExitCode.OK
    except GaloopError as error:
        return _report(str(error), error.exit_code)
    except click.UsageError as error:
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return _report(error.format_message() + where, ExitCode.USAGE)
    except click.ClickException as error:
        return _report(error.format_message(), ExitCode.FAILED)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (`gal show RUN | head`): nothing is left to say to it, and the
        # interpreter must not try to flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line, code 3
        if os.environ.get("GAL_TRACEBACK"):
            traceback.print_exc()
        what = " ".join(str(error).split())
        return _report(
            f"unexpected {type(error).__name__}: {what} (GAL_TRACEBACK=1 shows where)",
            ExitCode.INFRASTRUCTURE,
        )


def _report(text: str, code: ExitCode) -> int:
    for line in text.splitlines() or [""]:
        click.echo(f"error: {line}", err=True)
    return int(code)
