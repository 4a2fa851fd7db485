"""Content hashes and the random seeds that are derived from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """One spelling for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def content_hash(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()


def files_hash(files: Mapping[str, str]) -> str:
    """Hash of a small source tree, given as relative POSIX path -> text."""
    return content_hash({path: files[path] for path in sorted(files)})


def tree_hash(root: Path) -> str:
    """Hash of a file, or of all files below a folder: their names there and their bytes.

    Raises
    ------
    OSError
        One that cannot be read.
    """
    folder = root.is_dir()
    digests = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()) if folder else [root]:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests[path.relative_to(root).as_posix() if folder else ""] = digest
    return content_hash(digests)


def derive_seed(*parts: Any) -> int:
    """A 63-bit seed that depends on every part and on nothing else.

    Two different tuples of parts give independent seeds; the same tuple always gives the same
    one, on every machine and in every process.
    """
    digest = hashlib.sha256(canonical_json(list(parts)).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
