"""Which floating-point type a processor is best at."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from galoop.errors import ModelError

#: Names that ``dtype`` takes, besides ``"auto"``.
DTYPES = ("float32", "bfloat16", "float16")
ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
# x86 (AVX512-BF16, AMX-BF16) and ARM names for arithmetic in bfloat16.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def auto_dtype(device: str = "cpu") -> str:
    """``"bfloat16"`` where the device computes in it, else ``"float32"``.

    Parameters
    ----------
    device : str
        A torch device, such as ``"cpu"`` or ``"cuda:0"``.
    """
    if device.startswith("cuda"):
        import torch

        fast = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if fast else "float32"
    if device.startswith("cpu"):
        return "bfloat16" if processor_flags() & _BF16_FLAGS else "float32"
    return "float32"


def resolve_dtype(dtype: str, device: str = "cpu", preferred: str = "") -> str:
    """A full dtype name for what was asked for.

    Parameters
    ----------
    dtype : str
        ``"auto"``, one of :data:`DTYPES`, or a usual abbreviation.
    preferred : str
        What ``"auto"`` means for this model; empty: what the device is best at.

    Raises
    ------
    ModelError
        No such dtype.
    """
    name = dtype.lower().removeprefix("torch.")
    if name == "auto":
        return preferred or auto_dtype(device)
    name = ALIASES.get(name, name)
    if name not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}", f"use auto, {', '.join(DTYPES)}")
    return name


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction-set flags of this processor; empty where the system does not tell.

    Linux lists them in ``/proc/cpuinfo`` (``flags`` on x86, ``Features`` on ARM); macOS answers
    a ``sysctl``.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _macos_flags() if platform.system() == "Darwin" else frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return frozenset(value.lower().split())
    return frozenset()


def _macos_flags() -> frozenset[str]:
    command = ["sysctl", "-n", "hw.optional.arm.FEAT_BF16"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset({"bf16"}) if answer.stdout.strip() == "1" else frozenset()
