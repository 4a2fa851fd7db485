"""A probe made smaller, as a report shows it: the small program, and the original beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from galoop.report.model import AdmissionReport, LoopResult, Record

SCHEMA = 1


@dataclass(frozen=True)
class ShrunkReport(Record):
    """What a shrink came to.

    Attributes
    ----------
    slice, probe_key : str
        The slice, and the hash of its own program.
    artifact, model : str
        What it was shrunk against.
    original, source : str
        The program before and after; equal where nothing smaller was confirmed.
    before, after : tuple of int
        Parts (nodes of the syntax tree, words of texts, digits), uncommon words in word lists,
        and characters.
    edits : tuple of str
        What was done, step by step.
    tried, evaluations : int
    stopped_by : str
    attempts : tuple of AdmissionReport
        Tests on fresh seeds; the last one decided.
    confirmed : bool
        Whether the criterion holds for ``source`` on fresh seeds, with both bounds.
    """

    slice: str
    probe_key: str
    artifact: str
    model: str
    original: str
    source: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    edits: tuple[str, ...] = ()
    tried: int = 0
    evaluations: int = 0
    stopped_by: str = ""
    attempts: tuple[AdmissionReport, ...] = ()
    confirmed: bool = False
    schema: int = SCHEMA

    @property
    def words(self) -> str:
        """One sentence with n and both bounds."""
        if not self.confirmed:
            why = self.attempts[-1].reason if self.attempts else "no edit could be kept"
            return f"Nothing smaller was confirmed ({why}); the original stands."
        a = self.attempts[-1]
        return (
            f"From {self.before[0]} to {self.after[0]} parts in {len(self.edits)} steps "
            f"({self.tried} tried), confirmed against {self.artifact} on {self.model}: {a.reason}."
        )


def shrunk_file(name: str) -> str:
    """Where a run folder keeps it."""
    return f"shrunk/{name}.json"


def read_shrunk(run_dir: Path, result: LoopResult) -> dict[str, ShrunkReport]:
    """Confirmed shrinks of a run's slices, by name; one of another program is left aside."""
    found = {}
    for one in result.slices:
        path = run_dir / shrunk_file(one.name)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            report = ShrunkReport.from_json(data)
        except (OSError, ValueError, TypeError, KeyError):
            continue
        fits = report.schema == SCHEMA and report.probe_key == one.probe_key
        if fits and report.confirmed:
            found[one.name] = report
    return found


def render_reports(run_dir: Path) -> None:
    """Write ``report.md`` and ``report.html`` again, with all that was added to the run since.

    Raises
    ------
    StoreError
        No result in the folder, or a disk that is full or read-only.
    """
    from galoop.diversity.model import read_diversity
    from galoop.report import html, markdown
    from galoop.report.model import read_result
    from galoop.store.files import Files

    result = read_result(run_dir)
    diversity, shrunk = read_diversity(run_dir, result), read_shrunk(run_dir, result)
    files = Files(run_dir, frozenset())
    files.write_text("report.md", markdown.render(result, diversity, shrunk))
    files.write_text("report.html", html.render(result, diversity, shrunk))


def save_shrunk(run_dir: Path, report: ShrunkReport) -> None:
    """Keep a shrink in the run that its slice came from, and show it in the run's reports."""
    from galoop.store.files import Files

    text = json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n"
    Files(run_dir, frozenset()).write_text(shrunk_file(report.slice), text)
    render_reports(run_dir)
