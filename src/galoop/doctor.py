"""What works on this machine, and how to get what does not: the checks of ``gal doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from galoop.errors import GaloopError

Status = Literal["ok", "warn", "missing"]

#: What a run on the embedded model needs: weights, captured prefills, worker processes.
MEMORY_GB = 4.0
DISK_GB = 2.0
EMBEDDED = "smollm2-135m"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report.

    Attributes
    ----------
    name : str
    status : {"ok", "warn", "missing"}
    found : str
        What there is.
    fix : str
        How to get what is not there.
    required : bool
        Whether nothing works without it.
    """

    name: str
    status: Status
    found: str
    fix: str = ""
    required: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


def examine() -> Iterator[Check]:
    """Every check, in the order of the report; each is made when it is asked for."""
    for name, check in _CHECKS:
        try:
            yield from check()
        except (ImportError, OSError, RuntimeError, GaloopError) as error:
            yield Check(name, "missing", " ".join(str(error).split()), required=name == "torch")


def healthy(checks: list[Check]) -> bool:
    """Whether nothing that is required is missing."""
    return not any(check.required and check.status == "missing" for check in checks)


def _python() -> Iterator[Check]:
    found = f"{platform.python_version()} ({platform.machine()}, {platform.system()})"
    good = sys.version_info >= (3, 11)
    fix = "" if good else "install Python 3.11 or later"
    yield Check("python", "ok" if good else "missing", found, fix, required=True)


def _packages() -> Iterator[Check]:
    for package in ("torch", "transformers", "kvpress", "gepa"):
        try:
            yield Check(package, "ok", version(package), required=True)
        except PackageNotFoundError:
            fix = f"pip install {package} (`pip install galoop` does)"
            yield Check(package, "missing", "not installed", fix, required=True)


def _torch() -> Iterator[Check]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check("threads", "ok", f"torch uses {torch.get_num_threads()} on {cores} cores")
    from galoop.models import auto_dtype

    dtype = auto_dtype("cpu")
    if dtype == "bfloat16":
        yield Check("bfloat16", "ok", "computed natively; `auto` is bfloat16")
    else:
        yield Check(
            "bfloat16",
            "warn",
            f"not native on this processor; `auto` is {dtype}",
            "nothing to do: results are recorded with their dtype",
        )
    if torch.cuda.is_available():
        yield Check("gpu", "ok", torch.cuda.get_device_name(0))
    else:
        yield Check("gpu", "warn", "none: runs on the CPU", "optional: a CUDA build of torch")


def _isolation() -> Iterator[Check]:
    from galoop.isolation import Tier, detect, reports

    for report in reports():
        name = f"isolation: {report.tier}"
        if report.tier == Tier.PLAIN:
            continue
        status: Status = "ok" if report.works else "warn"
        yield Check(name, status, report.detail, report.fix)
    best = detect()
    if best == Tier.PLAIN:
        yield Check(
            "isolation",
            "warn",
            "candidate code would run in plain processes: limits only, no sandbox",
            "install bubblewrap, or use a kernel with Landlock; isolation.require refuses to run",
        )
    else:
        yield Check("isolation", "ok", f"candidate code runs in {best}")


def _memory() -> Iterator[Check]:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    yield _amount("memory", free, MEMORY_GB, "close other programs, or lower capture_memory_mb")


def _disk() -> Iterator[Check]:
    from galoop.models.cache import cache_root

    folder = cache_root()
    free = shutil.disk_usage(_existing(folder)).free / 2**30
    yield _amount(f"disk for {folder}", free, DISK_GB, "free some space")


def _existing(folder: Path) -> Path:
    return next(p for p in (folder, *folder.parents) if p.exists())


def _amount(name: str, free: float, needed: float, fix: str) -> Check:
    if free >= needed:
        return Check(name, "ok", f"{free:.1f} GB free")
    return Check(name, "warn", f"{free:.1f} GB free, {needed:g} GB wanted", fix)


def _model() -> Iterator[Check]:
    from galoop.models import resolve

    try:
        info = resolve(EMBEDDED, fetch=False)
    except GaloopError as error:
        yield Check(
            f"model {EMBEDDED}", "warn", error.what, f"gal models fetch {EMBEDDED} (about 140 MB)"
        )
    else:
        yield Check(f"model {EMBEDDED}", "ok", f"{info.path} ({info.dtype})")


def _domains() -> Iterator[Check]:
    from galoop.plugins import listing

    for item in listing("domains"):
        if item.error:
            fix = f"update or remove what declares it ({item.source})"
            yield Check(f"domain {item.name}", "warn", f"cannot be used: {item.error}", fix)
        else:
            yield Check(f"domain {item.name}", "ok", item.summary)


def _extras() -> Iterator[Check]:
    for extra, package in (("dev", "pytest"), ("docs", "sphinx")):
        try:
            yield Check(f"extra {extra}", "ok", f"{package} {version(package)}")
        except PackageNotFoundError:
            fix = f"optional: pip install 'galoop[{extra}]'"
            yield Check(f"extra {extra}", "warn", "not installed", fix)


_CHECKS: tuple[tuple[str, Callable[[], Iterator[Check]]], ...] = (
    ("python", _python),
    ("packages", _packages),
    ("torch", _torch),
    ("isolation", _isolation),
    ("memory", _memory),
    ("disk", _disk),
    ("model", _model),
    ("domains", _domains),
    ("extras", _extras),
)
