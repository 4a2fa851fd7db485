"""The prompt of one request: what the job is, what was tried, what came of it, how to answer.

Everything in it comes from the request. It says what the harness found and what the rules are; how
an approximation might be broken or repaired is for the model to find out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from galoop.config import LanguageModelConfig
from galoop.proposers.protocol import Evaluated, Request
from galoop.types import Excerpt, Feedback, State

Message = dict[str, str]

_SYSTEM = """\
You write programs for an automated search. Each answer is read by a program, evaluated, and its
result is shown to you the next time. Write complete, correct code; keep the contract exactly.
"""
_PROBE_FORMAT = """\
Answer with one line "Change: …" that says what the program does or what you changed, and then the
whole program in ONE fenced block:
````python
def build(rng, length, count_tokens):
    ...
````
Only that block is used. Use four backticks, so that fences inside the program do no harm.
"""
_ARTIFACT_FORMAT = """\
Answer with one line "Change: …" that says what you changed and why, and then each file that you
write or change, whole, in a fenced block of its own with its path after the language:
````python press.py
...
````
Files of the parent that you leave out stay as they are. A small change to the parent may instead be
one unified diff in a ```diff block. Use four backticks, so that fences inside a file do no harm.
"""
_FRESH = {
    "probe": "Write a new program from nothing.",
    "artifact": "Write a new artifact from nothing: all of its files.",
}
_MUTATE = {
    "probe": "Write a better program: change the parent, or replace it.",
    "artifact": "Write a better artifact: change the parent, or replace its algorithm.",
}
#: Shares of the longest prompt that single parts may take.
_PARENT_SHARE, _FROZEN_SHARE, _EXCERPT_SHARE = 0.4, 0.2, 0.2
_VERDICTS = {
    "solved": "Solved with the approximation:",
    "lost": "Lost (the unmodified model solves it, the approximation does not):",
    "missed": "Missed by the unmodified model, too:",
}
_REASON_CHARACTERS = 600
_LINE_CHARACTERS = 240


def messages(request: Request, knobs: LanguageModelConfig) -> list[Message]:
    """System and user message for ``request``.

    Parameters
    ----------
    request : Request
    knobs : LanguageModelConfig
        How many excerpts and earlier candidates are shown, and how long a prompt may be.
    """
    return [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": prompt(request, knobs)},
    ]


def prompt(request: Request, knobs: LanguageModelConfig) -> str:
    """The user message, in Markdown."""
    task, room = request.task, knobs.prompt_characters
    parts = [_section("Goal", task.objective)]
    if task.background.strip():
        parts.append(_section("Background", task.background))
    if task.contract.strip():
        parts.append(_section("Contract", task.contract))
    if task.length:
        parts.append(_section("Length", f"Build for a context of {task.length} tokens."))
    if task.budget:
        lines = [f"- {name} = {value:g}" for name, value in task.budget.items()]
        parts.append(_section("Budget (fixed, measured on every example)", "\n".join(lines)))
    if task.frozen:
        parts.append(_frozen(task.frozen, int(room * _FROZEN_SHARE)))
    if request.history:
        parts.append(_history(request, knobs.history))
    if request.parent is not None:
        parts.append(_parent(request.parent, knobs, room))
    if request.rejected:
        lines = [f"- {_line(reason, _REASON_CHARACTERS)}" for reason in request.rejected[-3:]]
        parts.append(
            _section("Your last answers to this request were not usable", "\n".join(lines))
        )
    ask = _FRESH if request.parent is None else _MUTATE
    form = _PROBE_FORMAT if task.kind == "probe" else _ARTIFACT_FORMAT
    last = _section("Your answer", f"{ask[task.kind]}\n\n{form}")
    return _cut("\n".join(parts), room - len(last), "[cut here]") + "\n" + last


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text.strip()}\n"


def _frozen(sources: Sequence[str], room: int) -> str:
    """The slices that exist; the newest first, since room may end."""
    blocks, left = [], room
    for number, source in sorted(enumerate(sources, start=1), reverse=True):
        text = _fenced(_cut(source, max(200, min(left, room // 2)), "# [cut here]"), "python")
        if left <= 0:
            blocks.append(f"({number} older ones are not shown)")
            break
        blocks.append(f"Slice {number}:\n\n{text}")
        left -= len(source)
    words = (
        "These programs were found before and are part of the benchmark already. A new one counts "
        "only if it shows something else.\n\n"
    )
    return _section("Already found", words + "\n\n".join(blocks))


def _history(request: Request, most: int) -> str:
    """The best and the latest candidates, a line each."""
    known = list(enumerate(request.history, start=1))
    best = sorted(known, key=lambda item: -item[1].feedback.score)[: (most + 1) // 2]
    latest = known[len(known) - (most - len(best)) :] if most > len(best) else []
    shown = sorted(dict([*best, *latest]).items())
    lines = [f"{len(known)} so far; the best and the latest:"]
    for number, one in shown:
        what = _line(one.candidate.note or "no note", _LINE_CHARACTERS)
        lines.append(f"{number}. {what}: {_result(one.feedback, short=True)}")
    return _section("Tried in this search", "\n".join(lines))


def _parent(parent: Evaluated, knobs: LanguageModelConfig, room: int) -> str:
    """The parent's source, what it scored, and examples."""
    files = parent.candidate.files
    share = int(room * _PARENT_SHARE / max(1, len(files)))
    blocks = [
        f"`{path}`:\n\n{_fenced(_cut(text, share, '# [cut here]'), _language(path))}"
        for path, text in sorted(files.items())
    ]
    text = "\n\n".join(blocks) + "\n\nResult: " + _result(parent.feedback)
    excerpts = parent.feedback.excerpts[: knobs.excerpts]
    if excerpts:
        share = int(room * _EXCERPT_SHARE / len(excerpts))
        text += "\n\nExamples (shortened):\n\n"
        text += "\n\n".join(_excerpt(one, share) for one in excerpts)
    return _section("The parent", text)


def _result(feedback: Feedback, short: bool = False) -> str:
    reason = _line(feedback.reason, _LINE_CHARACTERS if short else _REASON_CHARACTERS)
    if feedback.state is not State.SCORED:
        return f"{feedback.state}, not evaluated: {reason}"
    words = f"score {feedback.score:.3f}"
    figures = ", ".join(f"{name} {value:.3f}" for name, value in feedback.objectives.items())
    words += f" ({figures})" if figures else ""
    if not short and feedback.details:
        details = json.dumps(dict(feedback.details), sort_keys=True, default=str)
        words += f"; details {_line(details, _REASON_CHARACTERS)}"
    return words + (f"; {reason}" if reason else "")


def _excerpt(one: Excerpt, room: int) -> str:
    lines = [
        *([f"{_VERDICTS[one.verdict]}\n"] if one.verdict else []),
        _fenced(_cut(one.prompt, room), "text"),
        f"- gold answer: {_line(one.gold, 300)!r}",
    ]
    if one.reference:
        lines.append(f"- the unmodified model: {_line(one.reference, 300)!r}")
    answer = repr(_line(one.artifact, 300)) if one.artifact else "no answer"
    lines.append(f"- with the approximation: {answer}")
    return "\n".join(lines)


def _language(path: str) -> str:
    return {"py": "python"}.get(path.rpartition(".")[2], path.rpartition(".")[2])


def _fenced(text: str, language: str) -> str:
    """A block whose fence is longer than any run of backticks in it."""
    fence = "````"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _line(text: str, room: int) -> str:
    """A text as one line."""
    words = " ".join(text.split())
    return words if len(words) <= room else words[: room - 1] + "…"


def _cut(text: str, room: int, mark: str = "[…]") -> str:
    """The beginning of a long text, with a mark where it ends."""
    return text if len(text) <= room else f"{text[: max(0, room - len(mark) - 1)]}\n{mark}"
