"""Run a press artifact's entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from galoop.domains.kv_compression.artifact_spec import RULES, ArtifactSpec, parse_spec
from galoop.domains.text.artifact_code import ArtifactRuntimeError, call_entry
from galoop.types import State

if TYPE_CHECKING:
    from kvpress import BasePress


def load_press(
    files: Mapping[str, str], compression_ratio: float | None = None
) -> tuple[BasePress, ArtifactSpec]:
    """Execute an artifact's entry point and return its press.

    Parameters
    ----------
    files : mapping of relative POSIX path to text
    compression_ratio : float, optional
        Overrides what the artifact's own budget says.

    Returns
    -------
    press : kvpress.BasePress
        A fresh press.
    spec : ArtifactSpec

    Raises
    ------
    ArtifactError
        Before anything runs: the contract is broken.
    ArtifactRuntimeError
        The artifact's code raised or exited, or returned something that is not a press.
    """
    from kvpress import BasePress

    spec = parse_spec(files)
    ratio = spec.budget["compression_ratio"] if compression_ratio is None else compression_ratio
    press = call_entry(files, spec, RULES, compression_ratio=ratio)
    if not isinstance(press, BasePress):
        raise ArtifactRuntimeError(
            f"artifact {spec.name!r}: {spec.entry} returned {type(press).__name__}, not a press",
            State.INVALID,
            "return an instance of a subclass of kvpress.BasePress",
        )
    return press, spec
