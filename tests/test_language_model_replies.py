"""Reading candidates out of answers: fences, thinking, cut answers, diffs, several files."""

from __future__ import annotations

import difflib
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galoop.proposers.language_model import diffs
from galoop.proposers.language_model.blocks import split
from galoop.proposers.language_model.replies import MAX_CHARACTERS, ReplyError, read
from galoop.proposers.protocol import Evaluated, Request, Task
from galoop.types import Candidate, Feedback, State

PROGRAM = "def build(rng, length, count_tokens):\n    return {}\n"
OTHER = "def build(rng, length, count_tokens):\n    return {'other': 1}\n"
PRESS = "import torch\n\n\ndef build_press(compression_ratio):\n    return 1\n"
TOML = '[artifact]\nname = "x"\n'


def evaluated(candidate: Candidate) -> Evaluated:
    return Evaluated(candidate, Feedback(State.SCORED, 0.5, {"gap": 0.5}))


def probe_request(parent: str | None = None, history: tuple[str, ...] = ()) -> Request:
    known = [evaluated(Candidate("probe", {"probe.py": text})) for text in history]
    one = evaluated(Candidate("probe", {"probe.py": parent})) if parent is not None else None
    return Request(Task("probe", "d", "", "", ""), 0, one, tuple(known))


def artifact_request(files: dict[str, str] | None = None) -> Request:
    given_files = {"artifact.toml": TOML, "press.py": PRESS} if files is None else files
    one = evaluated(Candidate("artifact", given_files)) if given_files else None
    return Request(Task("artifact", "d", "", "", ""), 0, one, ())


def fenced(text: str, info: str = "python", fence: str = "```") -> str:
    return f"{fence}{info}\n{text}{fence}\n"


def probe_of(text: str, request: Request | None = None) -> str:
    return read(text, request or probe_request()).source


def refused(text: str, request: Request | None = None, **changes: bool) -> str:
    with pytest.raises(ReplyError) as error:
        read(text, request or probe_request(), **changes)
    return str(error.value)


# -- probes --------------------------------------------------------------------------------


@pytest.mark.parametrize("info", ["python", "py", "Python", "", "python3", "python probe.py"])
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_one_block(info: str, fence: str) -> None:
    text = f"Change: asks twice\n\n{fenced(PROGRAM, info, fence)}\nDone."
    made = read(text, probe_request())
    assert dict(made.files) == {"probe.py": PROGRAM}
    assert made.kind == "probe"
    assert made.note == "asks twice"


def test_of_three_blocks_the_last_program_counts() -> None:
    draft, example = fenced(OTHER), fenced("build(random.Random(0), 10, len)\n")
    assert probe_of(f"First:\n{draft}\nBetter:\n{fenced(PROGRAM)}\nUse it:\n{example}") == PROGRAM
    shell, output = fenced("pip install x\n", "bash"), fenced("42\n", "")
    assert probe_of(f"{shell}{fenced(PROGRAM)}{output}") == PROGRAM
    broken = fenced("def build(:\n")
    assert probe_of(f"{broken}{fenced(PROGRAM)}{broken}") == PROGRAM


def test_windows_line_ends_and_indented_fences() -> None:
    assert probe_of(fenced(PROGRAM).replace("\n", "\r\n")) == PROGRAM
    assert probe_of("  ```python\n" + PROGRAM + "  ```\n") == PROGRAM


def test_a_fence_inside_a_string_of_the_program_does_not_end_it() -> None:
    program = f'TEXT = """\n```\ncode\n```\n"""\n\n\n{PROGRAM}'
    assert probe_of(f"Here:\n{fenced(program)}\nThat is all.") == program
    assert probe_of(fenced(program, fence="````")) == program


def test_a_bare_program_and_bare_words() -> None:
    assert probe_of(PROGRAM) == PROGRAM
    assert "no fenced block" in refused("Sorry")
    assert "no fenced block" in refused("I cannot help with that request.")
    assert "empty" in refused("  \n ")


def test_what_does_not_parse_is_told_with_its_line() -> None:
    assert "line 1" in refused(fenced("def build(:\n    pass\n"))
    assert "no fenced block of Python" in refused(fenced("rm -rf x\n", "bash"))
    assert "defines nothing" in refused(fenced("42\n", ""))


def test_cut_answers_are_never_adopted() -> None:
    assert "cut off" in refused("```python\n" + PROGRAM)
    assert "cut off" in refused(fenced(OTHER) + "Better:\n```python\ndef build(r")
    assert "limit of tokens" in refused(fenced(PROGRAM), finished=False)


def test_the_same_program_again() -> None:
    assert "changes nothing" in refused(fenced(PROGRAM), probe_request(PROGRAM))
    assert "evaluated before" in refused(fenced(PROGRAM), probe_request(OTHER, (PROGRAM, OTHER)))


def test_a_huge_answer_is_refused_at_once() -> None:
    began = time.monotonic()
    assert "more than" in refused(fenced("x = 1\n" * (2_000_000 // 6)))
    assert probe_of(fenced(PROGRAM + "# long\n" * ((MAX_CHARACTERS - 200) // 7)))
    assert time.monotonic() - began < 10


def test_deep_nesting_does_no_harm() -> None:
    assert refused(fenced("x = " + "(" * 100_000 + ")" * 100_000 + "\n"))
    assert refused(fenced("x = " + "-" * 100_000 + "1\n"))


# -- thinking ------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning", "THINK"])
def test_thinking_is_left_out(tag: str) -> None:
    thought = f"<{tag}>\nmaybe\n{fenced(OTHER)}no\n</{tag}>\n"
    assert probe_of(thought + fenced(PROGRAM)) == PROGRAM
    assert probe_of(fenced(PROGRAM) + thought) == PROGRAM
    assert probe_of(f"<{tag}>short</{tag}>\n{fenced(PROGRAM)}") == PROGRAM


def test_thinking_whose_tag_the_server_cut_off() -> None:
    assert probe_of(f"hm\n{fenced(OTHER)}\n</think>\n{fenced(PROGRAM)}") == PROGRAM
    assert probe_of(f"a draft\n```python\n{OTHER}\n</think>\n{fenced(PROGRAM)}") == PROGRAM


def test_an_answer_that_never_stopped_thinking() -> None:
    assert "while thinking" in refused(f"<think>\n{fenced(PROGRAM)}")


def test_tags_inside_a_program_are_text() -> None:
    program = PROGRAM + 'TAGS = """\n<think>\n"""\n'
    assert probe_of(fenced(program)) == program
    assert probe_of(f"<think>a</think>\n{fenced(PROGRAM + chr(35) + ' </think>' + chr(10))}")


# -- artifacts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "info",
    [
        "python press.py",
        "press.py",
        'python title="press.py"',
        "python:press.py",
        "py file=press.py",
        "python ./press.py",
    ],
)
def test_files_by_their_info_string(info: str) -> None:
    new = PRESS.replace("1", "2")
    made = read(f"**Change:** twice\n\n{fenced(new, info)}", artifact_request())
    assert dict(made.files) == {"artifact.toml": TOML, "press.py": new}
    assert made.note == "twice"


@pytest.mark.parametrize(
    "heading", ["### press.py", "**press.py**", "`press.py`", "File: `press.py`", "press.py:"]
)
def test_files_by_the_heading_above(heading: str) -> None:
    new = PRESS.replace("1", "2")
    more = "def help():\n    return 3\n"
    text = f"{heading}\n\n{fenced(new)}\nand\n\n### sub/more.py\n{fenced(more)}"
    made = read(text, artifact_request())
    assert dict(made.files) == {"artifact.toml": TOML, "press.py": new, "sub/more.py": more}


def test_a_block_without_a_path_is_the_only_source() -> None:
    new = PRESS.replace("1", "2")
    assert read(fenced(new), artifact_request()).files["press.py"] == new
    two = artifact_request({"a.py": PRESS, "b.py": PRESS})
    assert "which file" in refused(fenced(new), two)
    assert "which file" in refused(fenced(new), artifact_request({}))


def test_an_artifact_from_nothing() -> None:
    text = fenced(TOML, "toml artifact.toml") + fenced(PRESS, "python press.py")
    made = read(text, artifact_request({}))
    assert dict(made.files) == {"artifact.toml": TOML, "press.py": PRESS}


def test_the_last_version_of_a_file_counts_and_explanations_do_not() -> None:
    new = PRESS.replace("1", "2")
    text = fenced(PRESS.replace("1", "9"), "python press.py") + fenced("x = 1\n")
    made = read(text + fenced(new, "python press.py"), artifact_request())
    assert made.files["press.py"] == new


@pytest.mark.parametrize(
    "path", ["../press.py", "/etc/x.py", "a/../../b.py", ".git/x.py", "a//b.py"]
)
def test_paths_outside_of_the_artifact_are_refused(path: str) -> None:
    assert "not a relative path" in refused(
        fenced(PRESS + "#\n", f"python {path}"), artifact_request()
    )


def test_files_that_do_not_parse_are_named() -> None:
    assert "press.py does not parse: line 1" in refused(
        fenced("def (\n", "python press.py"), artifact_request()
    )
    assert "artifact.toml does not parse" in refused(
        fenced("= 1\n", "toml artifact.toml"), artifact_request()
    )
    assert "p.json does not parse" in refused(fenced("{", "json p.json").replace("{```", "{\n```"),
                                              artifact_request({"p.json": "{}"}))  # fmt: skip


# -- diffs ---------------------------------------------------------------------------------

LONG = "".join(f"line {i}\n" for i in range(60))


def unified(old: str, new: str, path: str = "f.txt") -> str:
    return "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}"
        )
    )


def test_a_diff_changes_the_parent() -> None:
    new = PRESS.replace("return 1", "return 2")
    made = read("Change: 2\n" + fenced(unified(PRESS, new, "press.py"), "diff"), artifact_request())
    assert dict(made.files) == {"artifact.toml": TOML, "press.py": new}
    probe = read(fenced(unified(PROGRAM, OTHER, "probe.py"), "patch"), probe_request(PROGRAM))
    assert probe.source == OTHER


def test_a_diff_without_a_parent_or_that_does_not_fit() -> None:
    diff = fenced(unified(PROGRAM, OTHER, "probe.py"), "diff")
    assert "no parent" in refused(diff)
    assert "does not fit" in refused(diff, probe_request("x = 1\n"))
    assert "no hunk" in refused(fenced("hello\n", "diff"), probe_request(PROGRAM))
    broken = unified(PRESS, PRESS.replace("return 1", "return ("), "press.py")
    assert "after the diff, press.py does not parse" in refused(
        fenced(broken, "diff"), artifact_request()
    )


def test_wrong_line_numbers_do_not_matter_unless_they_decide() -> None:
    new = LONG.replace("line 30\n", "changed\n")
    wrong = unified(LONG, new).replace("@@ -28,7 +28,7 @@", "@@ -3,7 +3,7 @@")
    assert "@@ -3,7" in wrong
    assert diffs.apply(wrong, {"f.txt": LONG}) == {"f.txt": new}
    twice = "a\nb\nc\n" * 2
    hunk = "--- f.txt\n+++ f.txt\n@@ -{} +{} @@\n a\n-b\n+B\n c\n"
    assert diffs.apply(hunk.format(1, 1), {"f.txt": twice})["f.txt"] == "a\nB\nc\na\nb\nc\n"
    assert diffs.apply(hunk.format(4, 4), {"f.txt": twice})["f.txt"] == "a\nb\nc\na\nB\nc\n"


def test_new_and_deleted_files() -> None:
    diff = "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1,2 @@\n+x = 1\n+y = 2\n"
    assert diffs.apply(diff, {"f.txt": "a\n"}) == {"f.txt": "a\n", "n.py": "x = 1\ny = 2\n"}
    gone = "--- a/f.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
    assert diffs.apply(gone, {"f.txt": "a\n", "g": "b\n"}) == {"g": "b\n"}


def test_context_that_lost_its_leading_space_and_bare_hunks() -> None:
    diff = "@@\n def f():\n-    return 1\n+    return 2\n\n def g():\n"
    source = "def f():\n    return 1\n\ndef g():\n    pass\n"
    assert diffs.apply(diff, {"only.py": source})["only.py"] == source.replace("1", "2")


texts = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "@@ x", "-- e"]), max_size=25)


@settings(max_examples=150, deadline=None)
@given(texts, texts)
def test_what_difflib_writes_is_applied(old: list[str], new: list[str]) -> None:
    before, after = "".join(f"{x}\n" for x in old), "".join(f"{x}\n" for x in new)
    diff = unified(before, after)
    if not diff or not before:
        return
    try:
        made = diffs.apply(diff, {"f.txt": before})["f.txt"]
    except diffs.DiffError:
        raise AssertionError(diff) from None
    # Repeated lines may be placed elsewhere only when the stated line decides otherwise.
    assert made == after or not after


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="`~ \n<>/thinkpyabc=()@@+-#", max_size=400), st.booleans())
def test_no_text_makes_it_raise_anything_else(text: str, is_probe: bool) -> None:
    request = probe_request(PROGRAM) if is_probe else artifact_request()
    try:
        made = read(text, request)
    except ReplyError:
        return
    assert made.files


def test_every_prefix_of_an_answer_is_refused_or_whole() -> None:
    """A cut answer never gives a program that the whole answer does not hold."""
    whole = f"<think>\nhm {fenced(OTHER)}\n</think>\nChange: x\n\n{fenced(PROGRAM, fence='````')}"
    for end in range(len(whole)):
        try:
            made = read(whole[:end], probe_request())
        except ReplyError:
            continue
        assert made.source == PROGRAM


def test_blocks_of_a_random_answer_are_those_that_were_written() -> None:
    rng = random.Random(0)
    for _ in range(50):
        bodies = [f"x = {rng.random()}\n" * rng.randrange(1, 4) for _ in range(rng.randrange(1, 5))]
        text = "words\n".join(
            fenced(b, "python", rng.choice(["```", "````", "~~~"])) for b in bodies
        )
        assert [b.text for b in split(text).blocks] == bodies
