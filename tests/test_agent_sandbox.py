"""What an agent can reach: its worktree, and nothing of the run, the user or the machine."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from agent_tools import BWRAP, TIERS, rows, seated, settings, work
from galoop.errors import IsolationError, UsageError
from galoop.isolation import bubblewrap
from galoop.proposers.agents import sandbox

pytestmark = pytest.mark.usefixtures("world")
needs_bwrap = pytest.mark.skipif(not BWRAP, reason="no bubblewrap")

GOLD = "the frozen answer"


def frozen(folder: Path) -> list[Path]:
    """Files of a run that hold answers, and a private file of the user."""
    paths = [
        folder / "run" / "benchmark" / "B1" / "sealed.jsonl",
        folder / "run" / "run.sqlite",
        folder / "run" / "proposers" / "round-1" / "discriminator" / "session-1" / "probe.py",
        folder / "private" / "id_rsa",
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GOLD)
    return paths


@needs_bwrap
def test_the_frozen_set_and_the_store_do_not_exist_for_it(tmp_path: Path) -> None:
    paths = frozen(tmp_path)
    worked = work(
        tmp_path,
        f"""
        read, listed = [], []
        for path in {[str(p) for p in paths]!r}:
            try:
                read.append(pathlib.Path(path).read_text())
            except OSError as error:
                say(errno=error.errno)
        for folder in ("..", "../..", "/agent", {str(tmp_path / "run")!r}, {str(tmp_path)!r}):
            try:
                listed += os.listdir(folder)
            except OSError:
                pass
        for name in os.listdir("/proc"):
            for inner in ("environ", "root", "cwd", "fd"):
                try:
                    path = pathlib.Path("/proc", name, inner)
                    if inner == "environ":
                        read.append(path.read_text())
                    else:
                        listed += os.listdir(path)
                except OSError:
                    pass
        words = {GOLD[:5]!r} + {GOLD[5:]!r}
        found = subprocess.run(["grep", "-rl", words, "/agent", "/tmp", "/etc"],
                               capture_output=True, text=True)
        say(read=read, listed=listed, grep=found.stdout, pids=os.listdir("/proc"))
        """,
    )
    *errors, last = worked.said()
    assert [e["errno"] for e in errors] == [2] * len(paths)  # no such file
    assert not any(GOLD in text for text in last["read"])
    assert not {"run.sqlite", "sealed.jsonl", "id_rsa"} & set(last["listed"])
    assert str(os.getpid()) not in last["pids"] or os.getpid() < 10
    assert last["grep"] == ""
    assert worked.candidates == []


@needs_bwrap
def test_it_writes_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    worked = work(
        tmp_path,
        f"""
        import site
        wrote, places = [], [{str(outside)!r}, "/usr/lib", "/etc", "/", "/agent", "/agent/tools",
            "/agent/socket", site.getsitepackages()[0], "/work", "/proc", "/sys"]
        for place in places:
            try:
                pathlib.Path(place, "x").write_text("x")
                wrote.append(place)
            except OSError:
                pass
        for place in (os.environ["HOME"], os.environ["TMPDIR"], "/dev/shm"):
            pathlib.Path(place, "scratch").write_text("x")
        say(wrote=wrote, uid=os.getuid())
        write(0.5, 1.0, 0.4)
        say(**evaluate())
        """,
    )
    first, second = worked.said()
    assert first["wrote"] == []
    assert first["uid"] != 0
    assert list(outside.iterdir()) == []
    assert second["state"] == "scored"  # scratch files in its own folders harm nothing
    assert not (worked.session() / "home").exists()


@pytest.mark.parametrize("tier", TIERS)
def test_it_sees_no_variables_but_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "token-of-the-user")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-seat")
    monkeypatch.setenv("MY_KEY", "sk-for-the-agent")
    worked = work(
        tmp_path,
        """
        say(env=dict(os.environ))
        print("plain text with", os.environ["MY_KEY"])
        print("error with", os.environ["MY_KEY"], file=sys.stderr)
        (TREE / "artifact" / "x.py").write_text("KEY = " + repr(os.environ["MY_KEY"]))
        say(**evaluate())
        (TREE / "artifact" / "x.py").unlink()
        (TREE / "artifact" / (os.environ["MY_KEY"] + ".py")).write_text("")
        say(**evaluate())
        (TREE / "artifact" / (os.environ["MY_KEY"] + ".py")).unlink()
        (TREE / os.environ["MY_KEY"]).mkdir()
        say(**evaluate())
        (TREE / os.environ["MY_KEY"]).rmdir()
        write(0.5, 1.0, 0.4)
        say(**evaluate("-m", "with " + os.environ["MY_KEY"]))
        # Left behind where it was put: in a file, a name, a link, a commit.
        (TREE / "artifact" / "x.py").write_text("KEY = " + repr(os.environ["MY_KEY"]))
        (TREE / "artifact" / "big.bin").write_bytes(os.environ["MY_KEY"].encode() * 100000)
        (TREE / "artifact" / "link").symlink_to(os.environ["MY_KEY"])
        (TREE / ".git" / "config").write_text("# " + os.environ["MY_KEY"])
        """,
        tier,
        agent__environment=("MY_KEY", "NOT_SET"),
    )
    first, second, named, beside, noted = worked.said()
    assert not {"SOME_TOKEN", "OPENAI_API_KEY", "NOT_SET"} & set(first["env"])
    assert first["env"]["MY_KEY"] == "[credential]"  # it had the value; the transcript has not
    assert "holds the value of a credential" in second["reason"]
    assert "named after a credential" in named["reason"]
    assert "'[credential]'" in beside["reason"]
    assert noted["state"] == "scored"
    assert [c["note"] for c in worked.candidates] == ["with [credential]"]
    everything = list((tmp_path / "run").rglob("*"))
    assert sum(p.is_file() for p in everything) >= 4
    assert (worked.session() / "worktree" / "artifact" / "params.json").is_file()
    for path in everything:
        assert "sk-for-the-agent" not in str(path)
        if path.is_symlink():
            assert "sk-for-the-agent" not in str(path.readlink())
        elif path.is_file():
            assert b"sk-for-the-agent" not in path.read_bytes(), path
    assert "sk-for-the-agent" not in json.dumps(worked.improved.store.events())
    assert "sk-for-the-agent" not in json.dumps(worked.proposals)


@needs_bwrap
@pytest.mark.parametrize("network", [False, True])
def test_network_only_where_it_is_wanted(tmp_path: Path, network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        worked = work(
            tmp_path,
            f"""
            import socket
            try:
                socket.create_connection(("127.0.0.1", {port}), timeout=5).close()
                say(reached=True)
            except OSError:
                say(reached=False)
            """,
            agent__network=network,
        )
    assert worked.said() == [{"reached": network}]


@needs_bwrap
def test_a_run_folder_that_agents_may_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="lies in a folder that agents may read"):
        work(tmp_path, "pass", agent__readable=(str(tmp_path),))


def test_without_a_sandbox_it_is_said_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "working_base", lambda: (None, "bwrap is not installed"))
    assert sandbox.may_sandbox("auto", False) is False
    for tier, require in (("auto", True), ("bubblewrap", False), ("landlock", False)):
        with pytest.raises(IsolationError, match="bwrap is not installed"):
            sandbox.may_sandbox(tier, require)
    worked = work(tmp_path, "write(0.5, 1.0, 0.4)")
    assert worked.ended()["sandboxed"] is False
    assert worked.proposals[0]["about"]["sandboxed"] is False


@pytest.mark.parametrize("command", [(), ("no-such-agent-program",)])
def test_a_missing_program_is_said_before_anything_runs(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    config = settings(tmp_path, "pass", agent__command=command)
    with pytest.raises(UsageError, match="agent"):
        seated(config, tmp_path)


def test_the_socket_is_for_this_user_alone_and_goes_away(tmp_path: Path) -> None:
    worked = work(
        tmp_path,
        """
        import shlex, shutil
        words = shlex.split(pathlib.Path(shutil.which("gal-evaluate")).read_text())
        path = words[words.index("--socket") + 1]
        say(path=path, mode=os.stat(os.path.dirname(path)).st_mode)
        import socket
        for data in (b"", b"\\n", b"[" * 5000 + b"\\n", b"x" * 100000, b'{"do": "score"}\\n',
                     b'{"do": "evaluate", "score": 1.0, "files": {"a": "b"}, "note": 5}\\n'):
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                try:
                    s.sendall(data)
                    s.shutdown(socket.SHUT_WR)
                    got = s.recv(65536)
                except OSError:
                    got = b"{}"
                say(answer=json.loads(got or b"{}"))
        """,
        "plain",
    )
    first, *answers = rows(worked.session() / "transcript.jsonl")
    assert stat.S_IMODE(first["mode"]) == 0o700
    assert not Path(first["path"]).exists()
    # Garbage is refused; the one request that is one was answered for the tree, not for its words.
    assert all(a["answer"].get("state") in ("not evaluated", None) for a in answers[:-1])
    assert answers[-1]["answer"]["note"] == "evaluated before"
    assert worked.candidates == []


@needs_bwrap
@pytest.mark.parametrize(
    "real", ["lib/node_modules/@maker/agent/cli.sh", "share/agent/versions/1.2/agent"]
)
def test_an_installed_program_finds_its_own_files(tmp_path: Path, real: str) -> None:
    """As npm and native installers lay programs out: a link in a ``bin`` folder."""
    home = tmp_path / "user"
    program, link = home / real, home / "bin" / "agent"
    program.parent.mkdir(parents=True)
    link.parent.mkdir()
    (program.parent / "part.txt").write_text("its own part")
    (home / "private.txt").write_text("private")
    program.write_text(
        '#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\n'
        'cp "$here/part.txt" artifact/part.txt\n'
        f"cat {home}/private.txt >> artifact/part.txt || true\n"
    )
    program.chmod(0o755)
    link.symlink_to(os.path.relpath(program, link.parent))
    worked = work(tmp_path, "pass", agent__command=(str(link),), agent__readable=())
    assert worked.candidates != [], worked.ended()
    files = json.loads(worked.improved.store.get_object(worked.proposals[0]["files"]))
    assert files["part.txt"] == "its own part"
    # Also where what is readable covers the link.
    again = work(tmp_path / "2", "pass", agent__command=(str(link),), agent__readable=(str(home),))
    files = json.loads(again.improved.store.get_object(again.proposals[0]["files"]))
    assert files["part.txt"] == "its own partprivate"
