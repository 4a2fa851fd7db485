"""What is known about a model before and after it is resolved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from galoop.errors import ExitCode, ModelError, UnknownNameError


class UnknownModelError(ModelError, UnknownNameError):
    """No model of that name: neither known, nor a folder, nor a GGUF file, nor a hub name."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class ModelInfo:
    """A model that lies on this machine, ready to be loaded.

    Attributes
    ----------
    name : str
        The name that was asked for.
    path : Path
        A local folder of safetensors, configuration and tokenizer.
    dtype : str
        ``"float32"``, ``"bfloat16"`` or ``"float16"``: what the weights are computed in.
    fingerprint : str
        Hex SHA-256 that changes when weights, configuration, tokenizer or dtype change.
    window : int
        The greatest number of positions, in tokens.
    reference : str
        What ``config.name_or_path`` is set to, so that presses which look a model up by it
        (KVzip, FastKVzip, DuoAttention) find it: the folder, or the hub name.
    """

    name: str
    path: Path
    dtype: str
    fingerprint: str
    window: int
    reference: str = ""


@dataclass(frozen=True)
class ModelEntry:
    """A model that is known by name.

    Third parties add names through entry points of the group ``galoop.models``: a callable that
    returns a mapping of names to entries.

    Attributes
    ----------
    summary : str
        One line.
    location : str
        What the name stands for: a folder, a GGUF file or a hub name. Empty for
        ``smollm2-135m``, which is unpacked from a wheel.
    dtype : str
        What ``dtype="auto"`` means for it; empty: whatever the processor is best at.
    """

    summary: str
    location: str = ""
    dtype: str = ""
