"""The task file of an agent: what to write, by which rules, and how it is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from galoop.proposers.agents.worktree import MAX_FILE_BYTES, MAX_FILES, TASK
from galoop.proposers.protocol import Evaluated, Request, Task
from galoop.types import Feedback

#: Earlier candidates that a task file tells of: the best ones and the latest ones, so many each.
_TOLD = 6
_MAX_REASON = 600
_MAX_PROMPT = 1500


def text(
    request: Request, evaluate: str, left: int, seconds: float, suites: bool, rejected: bool = True
) -> str:
    """The task file.

    Parameters
    ----------
    request : Request
    evaluate : str
        The evaluation command; empty: there is none, the tree is evaluated when the agent ends.
    left : int
        Evaluations that are left (MAX_CANDIDATES).
    seconds : float
        Time limit of the session, without the time that evaluations take.
    suites : bool
        Whether the evaluation command can look at the regression suites.
    rejected : bool
        Whether to tell of earlier answers to this request that were refused.
    """
    task = request.task
    parts = [
        f"# Task: write {'a probe' if task.kind == 'probe' else 'an artifact'} ({task.domain})",
        *_section("Objective", task.objective),
        *_section("Background", task.background),
        *_section("Contract", task.contract),
        *_section("Budget", _budget(task)),
        *_section("Rules", _rules(task, evaluate, left, seconds, suites)),
        *_section("Where things stand", _standing(request)),
        *_section("Refused before", _refused(request) if rejected else ""),
        *_section("Probes that exist already (a new one must differ)", _frozen(task)),
    ]
    return "\n\n".join(parts) + "\n"


def prompt(task_path: str, evaluate: str) -> str:
    """The first message to the agent."""
    words = (
        f"Read {task_path} and do what it asks. Work in the current folder only, without asking "
        "questions: nobody will answer."
    )
    if evaluate:
        words += (
            f" Evaluate with the command `{evaluate}`; go on until your evaluations are used up."
        )
    return words


def summary(feedback: Feedback) -> dict[str, Any]:
    """What an agent is told of an evaluation, as JSON-compatible data of bounded size."""
    data: dict[str, Any] = {
        "state": str(feedback.state),
        "score": round(feedback.score, 4),
        "objectives": {name: round(value, 4) for name, value in feedback.objectives.items()},
    }
    if feedback.reason:
        data["reason"] = feedback.reason[:_MAX_REASON]
    if feedback.details:
        data["details"] = dict(feedback.details)
    if feedback.excerpts:
        data["examples"] = [
            {
                "prompt": excerpt.prompt[:_MAX_PROMPT],
                "gold": excerpt.gold[:_MAX_REASON],
                "reference": excerpt.reference[:_MAX_REASON],
                "artifact": excerpt.artifact[:_MAX_REASON],
                "verdict": excerpt.verdict,
            }
            for excerpt in feedback.excerpts[:4]
        ]
    return data


def _section(title: str, body: str) -> list[str]:
    return [f"## {title}\n\n{body.strip()}"] if body.strip() else []


def _budget(task: Task) -> str:
    lines = [f"- {name} = {value:g}" for name, value in task.budget.items()]
    if task.kind == "probe":
        lines.append(f"- contexts of at most {task.length} tokens")
    elif lines:
        lines.append("- measured by the harness; a candidate over budget is invalid")
    return "\n".join(lines)


def _rules(task: Task, evaluate: str, left: int, seconds: float, suites: bool) -> str:
    what = "the one file `probe.py`" if task.kind == "probe" else "the artifact's sources"
    rules = [
        f"Write only in `{task.kind}/`: {what}. At most {MAX_FILES} UTF-8 text files of "
        f"{MAX_FILE_BYTES // 1024} KiB; no links.",
        f"Anything else that you write in this folder (changes of `{TASK}`, new files beside "
        f"`{task.kind}/`) makes the candidate invalid. Scratch files belong in `$TMPDIR`.",
        "Read what you like here and in the installed Python packages. Examples, answers, the "
        "evaluator and other candidates are out of reach; looking for them is a waste of time.",
        "A candidate is what lies in the folder. What you say about it, and scores that you "
        "compute yourself, count nothing.",
        f"The session ends after {seconds:g} seconds"
        + (" (evaluations not counted)." if evaluate else "."),
    ]
    if evaluate:
        rules += [
            f"`{evaluate} -m 'what was changed'` evaluates the folder as it is on the primary set "
            "and prints the result as JSON. It may take minutes; when your shell gives up, call it "
            "again: an unchanged folder is never evaluated twice. `--list` shows all results.",
            f"MAX_CANDIDATES = {left}: you have {left} evaluations. Use all of them; do not stop "
            "early because a score looks good. The best candidate counts, not the last.",
        ]
    else:
        rules.append(
            "There is no evaluation command in this session: when you end, the folder is evaluated "
            "once, as it is then. Change something."
        )
    if evaluate and suites:
        rules.append(
            f"`{evaluate} --suites` also looks at the regression suites, which an artifact must "
            "not lose. It takes longer; use it on candidates that look good."
        )
    return "\n".join(f"{number}. {rule}" for number, rule in enumerate(rules, 1))


def _standing(request: Request) -> str:
    if not request.history and request.parent is None:
        return f"Nothing has been evaluated yet, and `{request.task.kind}/` is empty."
    parts = []
    if request.parent is not None:
        parts.append(f"`{request.task.kind}/` holds the candidate to improve. Its evaluation:")
        parts.append(_json(summary(request.parent.feedback)))
    told = _told(request.history)
    if told:
        parts.append(f"Evaluated so far: {len(request.history)}. The best and the latest:")
        parts.append("\n".join(told))
    return "\n\n".join(parts)


def _told(history: Sequence[Evaluated]) -> list[str]:
    order = sorted(range(len(history)), key=lambda i: -history[i].feedback.score)
    chosen = {*order[:_TOLD], *range(max(0, len(history) - _TOLD), len(history))}
    lines = []
    for index in sorted(chosen):
        one = history[index]
        said = one.feedback.reason.replace("\n", " ")[:200]
        note = one.candidate.note.replace("\n", " ")[:120]
        lines.append(
            f"- {index + 1}: {one.feedback.state}, score {one.feedback.score:.3f}"
            + (f" — {note}" if note else "")
            + (f" ({said})" if said else "")
        )
    return lines


def _refused(request: Request) -> str:
    return "\n".join(f"- {reason[:_MAX_REASON]}" for reason in request.rejected)


def _frozen(task: Task) -> str:
    return "\n\n".join(f"```python\n{source.strip()}\n```" for source in task.frozen)


def _json(data: Mapping[str, Any]) -> str:
    dumped = json.dumps(data, indent=1, ensure_ascii=False, default=str)
    return f"```json\n{dumped}\n```"
