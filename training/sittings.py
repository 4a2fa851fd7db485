"""What every training script here does besides training: checkpoints, and the card with its log."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def save_checkpoint(data: Mapping[str, Any], work: Path) -> None:
    """Write the checkpoint and rename it into place: a kill never leaves half of one."""
    work.mkdir(parents=True, exist_ok=True)
    temporary = work / "checkpoint.tmp"
    torch.save(dict(data), temporary)
    temporary.replace(work / "checkpoint.pt")


def load_checkpoint(
    arguments: Mapping[str, Any], work: Path, *, free: Sequence[str] = (), device: str = "cpu"
) -> dict[str, Any] | None:
    """The checkpoint of a run with the same arguments; None where there is none.

    Parameters
    ----------
    arguments : mapping
        Those that decide the weights, as under ``arguments`` of the checkpoint.
    work : Path
    free : sequence of str
        Names that may differ all the same.
    device : str
        Where its tensors are put.

    Raises
    ------
    SystemExit
        It comes from other arguments.
    """
    path = work / "checkpoint.pt"
    if not path.exists():
        return None
    data: dict[str, Any] = torch.load(path, weights_only=True, map_location=device)
    skipped = dict.fromkeys(free)
    if {**data["arguments"], **skipped} != {**arguments, **skipped}:
        raise SystemExit(f"{path} comes from other arguments; give another --work")
    return data


def write_card(
    template: str, facts: Mapping[str, str], log: Sequence[Mapping[str, Any]], folder: Path
) -> None:
    """Fill the template of a model card and write it, and the log, beside the weights.

    Parameters
    ----------
    template : str
        Name of a file in this folder; ``{{NAME}}`` stands for ``facts["NAME"]``.
    facts : mapping of str to str
    log : sequence of mapping
        Rows of ``training_log.csv``, all with the same keys.
    folder : Path
    """
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    for name, value in facts.items():
        text = text.replace("{{" + name + "}}", value)
    (folder / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    with (folder / "training_log.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(log[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)
