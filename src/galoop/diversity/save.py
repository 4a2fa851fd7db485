"""A look at diversity, kept in the run folder and shown in its reports."""

from __future__ import annotations

from pathlib import Path

from galoop.diversity.model import FILE, DiversityReport
from galoop.report.model import read_result
from galoop.store.files import Files


def save_diversity(run_dir: Path, report: DiversityReport) -> None:
    """Write ``diversity.json``, and ``report.md`` and ``report.html`` with the section.

    Raises
    ------
    StoreError
        No result in the folder, or a disk that is full or read-only.
    """
    from galoop.report.shrunk import render_reports

    read_result(run_dir)
    Files(run_dir, frozenset()).write_text(FILE, report.dumps())
    render_reports(run_dir)


def save_if_installed(run_dir: Path) -> None:
    """After a run: the section on diversity, where the extra is installed and there are two items.

    Nothing of a run depends on it; what goes wrong here is left for ``gal diversity`` to say.
    """
    from galoop.diversity import embedding
    from galoop.diversity.measure import measure
    from galoop.errors import GaloopError

    if not embedding.available():
        return
    try:
        if len(read_result(run_dir).slices) >= 2:
            save_diversity(run_dir, measure(run_dir, embedding.MiniLM()))
    except GaloopError:
        return
