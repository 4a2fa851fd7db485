"""Content hashes of model folders, remembered by size and time of each file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from galoop.errors import ModelError
from galoop.hashing import content_hash
from galoop.models.cache import sha256_of

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "*.bin.index.json")
SETTINGS = ("config.json", "generation_config.json")
TOKENIZER = (
    "tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "chat_template.*",
)  # fmt: skip
#: The files of a folder that decide what a model computes.
PATTERNS = (*SETTINGS, *WEIGHTS, *TOKENIZER)


def model_files(folder: Path) -> list[Path]:
    """The files of a model folder that decide what it computes, sorted by name."""
    return sorted({p for pattern in PATTERNS for p in folder.glob(pattern) if p.is_file()})


def fingerprint(folder: Path, dtype: str, hashes_dir: Path) -> str:
    """Hash of weights, configuration, tokenizer and dtype.

    The hash of a file is kept in ``hashes_dir`` under its size and modification time in
    nanoseconds, so that a second call reads no weights. A cache that cannot be written costs time,
    not correctness.

    Parameters
    ----------
    folder : Path
        A model folder.
    dtype : str
        Full dtype name.
    hashes_dir : Path
        Where file hashes are remembered.

    Returns
    -------
    str
        Hex SHA-256.
    """
    folder = folder.resolve()
    memory = hashes_dir / f"{content_hash(str(folder))[:24]}.json"
    known = _recall(memory)
    try:
        hashes = _hashes(model_files(folder), known)
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}") from error
    if hashes != known:
        _remember(memory, hashes)
    return content_hash({"dtype": dtype, "files": {name: row[2] for name, row in hashes.items()}})


Row = tuple[int, int, str]  # size, modification time (ns), SHA-256


def _hashes(files: Iterable[Path], known: dict[str, Row]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for path in files:
        status = path.stat()
        row = known.get(path.name)
        if row is None or row[:2] != (status.st_size, status.st_mtime_ns):
            row = (status.st_size, status.st_mtime_ns, sha256_of(path))
        rows[path.name] = row
    return rows


def _recall(memory: Path) -> dict[str, Row]:
    try:
        data = json.loads(memory.read_text(encoding="utf-8"))
        return {str(k): (int(v[0]), int(v[1]), str(v[2])) for k, v in data.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _remember(memory: Path, hashes: dict[str, Row]) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=memory.parent, prefix=memory.name)
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(hashes, stream, sort_keys=True)
        Path(name).replace(memory)
    except OSError:
        Path(name).unlink(missing_ok=True)
