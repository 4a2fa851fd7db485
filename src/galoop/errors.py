"""The error tree and the exit codes of the command line.

Every error names what was wrong, where, and what to do about it. The command line prints
``error: <message>`` on one line and exits with :attr:`GaloopError.exit_code`.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``gal``, in the manner of pytest."""

    OK = 0
    FAILED = 1
    INTERRUPTED = 2
    INFRASTRUCTURE = 3
    USAGE = 4
    NOTHING_EVALUATED = 5
    INCONCLUSIVE = 6


class GaloopError(Exception):
    """Base of all errors that galoop raises on purpose.

    Parameters
    ----------
    what : str
        What is wrong, and where.
    fix : str, optional
        What the reader can do about it.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = what
        self.fix = fix
        super().__init__(f"{what} ({fix})" if fix else what)


class UsageError(GaloopError):
    """The caller asked for something that cannot be: a wrong flag, name or value."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """An experiment file has a wrong key, type or value."""


class UnknownNameError(UsageError):
    """A domain, artifact, model, suite, proposer or search of that name is not registered."""


class ModelError(GaloopError):
    """A model could not be found, fetched, converted or loaded."""

    exit_code = ExitCode.INFRASTRUCTURE


class ArtifactError(UsageError):
    """An artifact folder breaks its contract before anything of it has run."""


class StoreError(GaloopError):
    """The run store cannot be read or written: another version, a full disk, a foreign folder."""

    exit_code = ExitCode.INFRASTRUCTURE


class IsolationError(GaloopError):
    """The isolation that was asked for is not available, or its server died."""

    exit_code = ExitCode.INFRASTRUCTURE


class InfrastructureError(GaloopError):
    """Something of ours failed. Never turned into a score."""

    exit_code = ExitCode.INFRASTRUCTURE


class BudgetExhausted(GaloopError):
    """A hard cap (evaluations, seconds, dollars, tokens) was reached before the next spend."""


class NothingEvaluatedError(GaloopError):
    """The command ended without evaluating anything."""

    exit_code = ExitCode.NOTHING_EVALUATED


class InconclusiveError(GaloopError):
    """The evidence is too thin for a verdict."""

    exit_code = ExitCode.INCONCLUSIVE
