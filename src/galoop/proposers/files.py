"""Proposals from files: a person, a chat window or another program sits in the seat.

Each request is a folder, ``<index>.<attempt>``, which appears whole (it is made under another name
and renamed)::

    0007.0/prompt.md       the request in words, as a language model would be given it
    0007.0/parent/…        the files of the parent
    0007.0/feedback.json   what came of the parent and of everything before it, as data
    0007.0/request.json    format, stage, kind, and a hash of the request

The answer is one of these, next to them, and is best written under another name and renamed:

- ``answer.md``: text as a language model would write it, with fenced blocks or a diff;
- ``answer/``: the folder of the whole candidate (``answer/probe.py``), renamed into place last;
- ``stop``: an empty file that ends the search; what was found is kept.

A request that was made before, with the same content, is not written again: where its answer is
there already, it is taken at once. So a search that is resumed, or run again with the same folder,
goes through the answers that exist.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from galoop.errors import InfrastructureError, UsageError
from galoop.hashing import content_hash
from galoop.proposers.language_model.prompts import prompt
from galoop.proposers.language_model.replies import ReplyError, read
from galoop.proposers.protocol import Cost, Evaluated, Proposal, Request, Seat
from galoop.redaction import clean
from galoop.search.protocol import StopSearch
from galoop.store.files import disk_errors
from galoop.types import Candidate

FORMAT = 1
_ANSWER, _FOLDER, _STOP = "answer.md", "answer", "stop"
_MOST_FILES, _MOST_BYTES = 64, 4 * 2**20


class FilesProposer:
    """Writes each request into a folder and waits for its answer.

    Parameters
    ----------
    seat : Seat
        Its table ``[files]`` says where, and how long to wait.
    """

    name = "files"
    replayable = False

    def __init__(self, seat: Seat) -> None:
        self._knobs = seat.config.files
        self._prompts = seat.config.language_model
        self._seat = seat
        own = self._knobs.folder
        self._folder = Path(own) / seat.stage if own else seat.folder

    def propose(self, request: Request) -> Proposal:
        """The answer to the request, once it is there.

        Raises
        ------
        StopSearch
            There is a file ``stop``.
        InfrastructureError
            No answer within ``files.timeout``: the run stops, and goes on when it is started again.
        UsageError
            The folder holds another request of that number.
        """
        began = time.monotonic()
        name = f"{request.index:04d}.{len(request.rejected)}"
        place = self._folder / name
        with disk_errors(f"write the request {place}"):
            self._write(place, request)
        self._wait(place, began)
        cost = Cost(seconds=time.monotonic() - began)
        about = {"request": name}
        try:
            return Proposal(self._answer(place, request), cost, "", about)
        except ReplyError as error:
            return Proposal(None, cost, str(error), about)

    # -- the request ------------------------------------------------------------------------

    def _write(self, place: Path, request: Request) -> None:
        text = clean(prompt(request, self._prompts))
        about = {
            "format": FORMAT,
            "domain": request.task.domain,
            "kind": request.task.kind,
            "stage": self._seat.stage,
            "index": request.index,
            "attempt": len(request.rejected),
            "request": content_hash(text),
        }
        if place.is_dir():
            self._check_same(place, about)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = self._folder / f".{place.name}.{os.getpid()}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        (scratch / "prompt.md").write_text(text, encoding="utf-8")
        _write_json(scratch / "feedback.json", _feedback(request))
        _write_json(scratch / "request.json", about)
        parent = request.parent.candidate.files if request.parent is not None else {}
        for path, source in parent.items():
            file = scratch / "parent" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        scratch.rename(place)

    def _check_same(self, place: Path, about: Mapping[str, Any]) -> None:
        try:
            known = json.loads((place / "request.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = None
        if known != about:
            raise UsageError(
                f"{place} holds another request, of another run or other settings",
                "name a new files.folder, or the folder of the same run",
            )

    # -- the answer -------------------------------------------------------------------------

    def _wait(self, place: Path, began: float) -> None:
        """Until an answer is there and has not changed between two looks."""
        before: tuple[Any, ...] | None = None
        while True:
            if (place / _STOP).exists() or (self._folder / _STOP).exists():
                raise StopSearch("files: a file says stop")
            now = _state(place)
            if now is not None and now == before:
                return
            if now is None and time.monotonic() - began > self._knobs.timeout:
                raise InfrastructureError(
                    f"no answer within {self._knobs.timeout:g} s: {place}",
                    f"write {_ANSWER} or {_FOLDER}/ there and run the same command to go on",
                )
            before = now
            time.sleep(self._knobs.poll)

    def _answer(self, place: Path, request: Request) -> Candidate:
        if not (place / _FOLDER).is_dir():
            with disk_errors(f"read {place / _ANSWER}"):
                text = (place / _ANSWER).read_bytes().decode("utf-8", "replace")
            return read(clean(text), request)
        files = _files(place / _FOLDER)
        candidate = Candidate(request.task.kind, files, f"files of {place.name}")
        if request.task.kind == "probe" and set(files) != {"probe.py"}:
            raise ReplyError("the folder of a probe holds one file, probe.py")
        if any(candidate.key == known.candidate.key for known in request.history):
            raise ReplyError("these very files were evaluated before")
        return candidate


def _state(place: Path) -> tuple[Any, ...] | None:
    """What the answer looks like now; None where there is none yet."""
    paths = [place / _ANSWER]
    if (place / _FOLDER).is_dir():
        paths = [p for p in sorted((place / _FOLDER).rglob("*")) if p.is_file()]
    found = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            return None
        found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return tuple(found) if any(size for _, size, _ in found) else None


def _files(folder: Path) -> dict[str, str]:
    """The text files below ``folder``; links are not followed."""
    out: dict[str, str] = {}
    total = 0
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_symlink():
            raise ReplyError(f"{relative} is a link; only files are read")
        if not path.is_file() or "__pycache__" in relative.parts:
            continue
        total += path.stat().st_size
        if len(out) >= _MOST_FILES or total > _MOST_BYTES:
            raise ReplyError(f"more than {_MOST_FILES} files or {_MOST_BYTES} bytes are not read")
        try:
            out[relative.as_posix()] = clean(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ReplyError(f"{relative} cannot be read: {error}") from None
    if not out:
        raise ReplyError("the folder of the answer is empty")
    return out


def _feedback(request: Request) -> dict[str, Any]:
    return {
        "task": {
            "kind": request.task.kind,
            "length": request.task.length,
            "budget": dict(request.task.budget),
        },
        "parent": _evaluated(request.parent) if request.parent is not None else None,
        "history": [_evaluated(one) for one in request.history],
        "rejected": list(request.rejected),
    }


def _evaluated(one: Evaluated) -> dict[str, Any]:
    feedback = one.feedback
    return {
        "key": one.candidate.key,
        "note": one.candidate.note,
        "state": str(feedback.state),
        "score": feedback.score,
        "objectives": dict(feedback.objectives),
        "reason": feedback.reason,
        "details": dict(feedback.details),
        "excerpts": [
            {
                "prompt": e.prompt,
                "gold": e.gold,
                "reference": e.reference,
                "artifact": e.artifact,
                "verdict": e.verdict,
            }
            for e in feedback.excerpts
        ],
    }


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, sort_keys=True, default=str)
    path.write_text(clean(text) + "\n", encoding="utf-8")
