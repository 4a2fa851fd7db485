"""Isolation in every tier that works here: what candidates cannot do, and what becomes of them."""

from __future__ import annotations

import gc
import logging
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from galoop.errors import GaloopError, IsolationError
from galoop.isolation import (
    CandidateCrashed,
    CandidateError,
    CandidateProtocolError,
    CandidateTimeout,
    Child,
    ForkServer,
    Limits,
    Tier,
    available_tiers,
    memfd_from_bytes,
    new_output_memfd,
    read_output,
)

HERE = Path(__file__).parent
WARM, SERVE = "isolation_candidates:warm", "isolation_candidates:serve"
REFUSALS = {"EPERM", "EACCES", "EROFS", "ENOSYS"}
LINUX = available_tiers() != [Tier.PLAIN]

pytestmark = pytest.mark.skipif(not LINUX, reason="the tiers need Linux")


def start(tier: Tier, **keywords: object) -> ForkServer:
    init = keywords.pop("init", {"payload": "model"})
    return ForkServer(WARM, init, tier=tier, python_path=[HERE], **keywords)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=available_tiers(), ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    with start(request.param) as running:
        yield running


@pytest.fixture
def child(server: ForkServer) -> Iterator[Child]:
    with server.fork(SERVE, {"number": 7}, Limits(seconds=20, memory_mb=512)) as running:
        yield running


def do(child: Child, name: str, **arguments: object) -> dict:
    return child.call({"do": name, "with": arguments})


def assert_refused(found: dict) -> None:
    allowed = {name: got for name, got in found.items() if got.get("errno") not in REFUSALS}
    assert not allowed


# -- what works ---------------------------------------------------------------------------------


def test_state_init_and_requests_arrive(child: Child) -> None:
    reply = do(child, "echo", text="é" * 100_000)
    assert reply["state"] == {"loaded": "model"}
    assert reply["init"] == {"number": 7}
    assert reply["values"] == {"text": "é" * 100_000}
    assert do(child, "echo")["pid"] == reply["pid"]  # one process serves all calls


def test_start_is_cheap(server: ForkServer) -> None:
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        with server.fork(SERVE, {}, Limits()) as child:
            do(child, "echo")
        times.append(time.perf_counter() - begin)
    assert statistics.median(times) < 1.0


def test_two_children_at_once(server: ForkServer) -> None:
    with server.fork(SERVE, {}, Limits()) as slow, server.fork(SERVE, {}, Limits()) as quick:
        begin = time.perf_counter()
        finished = {}
        waiting = threading.Thread(
            target=lambda: finished.setdefault("slow", do(slow, "sleep", seconds=0.8))
        )
        waiting.start()
        do(quick, "echo")
        assert time.perf_counter() - begin < 0.7
        assert not finished
        waiting.join()
    assert finished == {"slow": {}}


def test_threads_and_sibling_forks(child: Child) -> None:
    assert do(child, "threads") == {"count": 8}


def test_hashes_do_not_vary(server: ForkServer) -> None:
    hashes = set()
    for tier in {server.tier, Tier.PLAIN}:
        with start(tier) as other, other.fork(SERVE, {}, Limits()) as child:
            hashes.add(do(child, "hash_of", text="galoop")["hash"])
    assert len(hashes) == 1


def test_torch_works_with_one_thread(server: ForkServer) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    m = torch.randn(200, 200, generator=generator)[None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(m, m, m).double().sum()
    with (
        start(server.tier, init={"torch": True}) as loaded,
        loaded.fork(SERVE, {}, Limits()) as child,
    ):
        reply = do(child, "torch_sum")
    assert reply["threads"] == 1
    assert reply["sum"] == pytest.approx(float(expected), rel=1e-4, abs=1e-2)


# -- what candidates cannot do ------------------------------------------------------------------


def test_files_outside_the_view_cannot_be_read(
    server: ForkServer, child: Child, tmp_path: Path
) -> None:
    secret = tmp_path / "gold.json"
    secret.write_text("the answer")
    if server.tier is Tier.PLAIN:
        pytest.skip("plain processes read what their user reads")
    outside = [secret, "/etc/passwd", HERE.parent / "pyproject.toml", HERE.parent / "README.md"]
    for path in outside:
        assert do(child, "read_file", path=str(path))["errno"] in {"ENOENT", "EACCES"}


def test_readable_paths_can_be_read(server: ForkServer, tmp_path: Path) -> None:
    blobs, snapshot, other = tmp_path / "blobs", tmp_path / "snapshot", tmp_path / "other"
    for folder in (blobs, snapshot, other):
        folder.mkdir()
    (blobs / "weights").write_text("weights")
    (snapshot / "model").symlink_to("../blobs/weights")  # as hub caches do
    (other / "gold").write_text("gold")
    with (
        start(server.tier, readable=[snapshot]) as running,
        running.fork(SERVE, {}, Limits()) as child,
    ):
        assert do(child, "read_file", path=str(snapshot / "model")) == {"result": "'weights'"}
        if server.tier is not Tier.PLAIN:
            assert "errno" in do(child, "read_file", path=str(other / "gold"))


def test_nothing_can_be_written(child: Child, tmp_path: Path) -> None:
    folders = ["/", "/tmp", "/dev", "/dev/shm", "/var/tmp", "/usr", "/proc", str(HERE)]
    found = do(child, "write_files", folders=[*folders, str(tmp_path), str(Path.cwd())])
    wrote = [
        name
        for name, got in found.items()
        if got.get("errno") not in REFUSALS | {"ENOENT", "EEXIST"}
    ]
    assert not wrote


def test_existing_files_cannot_be_changed(server: ForkServer, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_text("weights")
    before = file.stat()
    with (
        start(server.tier, readable=[tmp_path]) as running,
        running.fork(SERVE, {}, Limits()) as child,
    ):
        assert_refused(do(child, "change_file", path=str(file)))
    assert file.read_text() == "weights"
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert file.stat().st_mode == before.st_mode


def test_no_sockets(child: Child) -> None:
    assert_refused(do(child, "sockets"))


def test_no_processes(child: Child) -> None:
    assert_refused(do(child, "processes"))
    do(child, "echo")  # and it is still the same, living process


def test_no_reach_to_other_processes(server: ForkServer, child: Child) -> None:
    assert_refused(do(child, "attack_others"))
    assert server.alive
    with server.fork(SERVE, {}, Limits()) as sibling:
        do(sibling, "echo")


def test_no_secrets(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALOOP_TEST_API_KEY", "sk-sesame-open")
    with start(server.tier) as running, running.fork(SERVE, {}, Limits()) as child:
        found = do(child, "secrets")
    if server.tier is Tier.PLAIN:  # other processes of the same user can be looked at there
        found = {name: found[name] for name in ("os", "self")}
    assert "sesame" not in str(found)
    assert "PYTHONHASHSEED" in found["os"]


def test_the_parent_cannot_be_inspected(child: Child) -> None:
    for got in do(child, "inspect_parent").values():
        assert "errno" in got


def test_only_the_channel_is_inherited(child: Child) -> None:
    found = do(child, "own_descriptors")
    # 0-2 are /dev/null, one more is sys.stdin's own, and the ring's mapping keeps a duplicate.
    assert found["channel"] in found["fds"]
    assert len(found["fds"]) <= 6


# -- what becomes of bad candidates -------------------------------------------------------------


@pytest.mark.parametrize("name", ["sleep", "spin"])
def test_hanging_is_a_timeout(server: ForkServer, name: str) -> None:
    arguments = {"seconds": 1000} if name == "sleep" else {}
    with server.fork(SERVE, {}, Limits(seconds=0.4)) as child:
        pids = _descendants()
        begin = time.perf_counter()
        with pytest.raises(CandidateTimeout, match=r"within 0\.4 s"):
            do(child, name, **arguments)
        assert time.perf_counter() - begin < 5
        assert len(_descendants()) < len(pids)  # killed and reaped by then
        with pytest.raises(CandidateCrashed, match="ended already"):
            do(child, "echo")


def test_a_call_has_its_own_limit(child: Child) -> None:
    with pytest.raises(CandidateTimeout):
        child.call({"do": "sleep", "with": {"seconds": 1000}}, seconds=0.2)


def test_output_of_a_hanging_candidate(server: ForkServer) -> None:
    with (
        server.fork(SERVE, {}, Limits(seconds=0.5)) as child,
        pytest.raises(CandidateTimeout) as caught,
    ):
        do(child, "print_then_hang")
    assert caught.value.output == "about to hang\n"


def test_memory_bomb(child: Child) -> None:
    assert do(child, "hog", mebibytes=200) == {"length": 200 * 2**20}
    with pytest.raises(CandidateCrashed, match=r"MemoryError .the limit is 512 MiB"):
        do(child, "hog", mebibytes=600)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("exit", {"code": 0}, "exit code 0 before it answered"),
        ("exit", {"code": 3}, "exit code 3"),
        ("system_exit", {}, "SystemExit: leaving"),
        ("crash_natively", {}, "signal 11 .SIGSEGV"),
        ("abort", {}, "signal 6 .SIGABRT"),
        ("kill_itself", {}, "signal 9 .SIGKILL: out of memory"),
        ("close_channel_and_sleep", {}, "closed its connection"),
        ("reply_too_long", {}, "ValueError: a reply of"),
        ("reply_nan", {}, "ValueError: Out of range float"),
    ],
)
def test_crashes_have_reasons(child: Child, name: str, arguments: dict, reason: str) -> None:
    with pytest.raises(CandidateCrashed, match=reason):
        do(child, name, **arguments)


def test_exceptions_come_with_output(child: Child) -> None:
    with pytest.raises(CandidateCrashed) as caught:
        do(child, "raise_after_printing")
    assert caught.value.reason == "ValueError: on purpose"
    assert caught.value.output.startswith("first line\non the error stream\n�[31mbytes\n")
    assert "in raise_after_printing" in caught.value.output
    assert not isinstance(caught.value, GaloopError)


def test_printing_a_gigabyte(child: Child) -> None:
    assert do(child, "print_gigabyte") == {"printed": True}
    tail = child.output()
    assert tail.endswith("x\nthe end\n")
    assert len(tail) == 4096


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("send", {"text": "garbage ", "times": 1000}),
        ("send", {"text": "GALP garbage with the right beginning"}),
        ("announce", {"length": 2**32 - 1}),
        ("announce", {"length": 16 * 2**20 + 1}),
        ("send_frame", {"text": "not json"}),
        ("send_frame", {"text": "[1, 2]"}),
        ("send_frame", {"text": '{"a": NaN}'}),
        ("send_frame", {"text": "[" * 500_000}),
        ("send_frame", {"text": '{"a": ' + "9" * 10_000 + "}"}),
        ("send_frame", {"text": "{}", "seq": 99}),
        ("send_frame", {"text": "{}", "kind": 1}),
    ],
)
def test_garbage_is_a_protocol_error(child: Child, name: str, arguments: dict) -> None:
    with pytest.raises(CandidateProtocolError):
        do(child, name, **arguments)


def test_a_short_message_is_a_timeout(server: ForkServer) -> None:
    with server.fork(SERVE, {}, Limits(seconds=0.3)) as child, pytest.raises(CandidateTimeout):
        do(child, "send", text="GALP")


def test_descriptors_from_candidates_are_dropped(child: Child) -> None:
    before = psutil.Process().num_fds()
    for _ in range(5):
        assert do(child, "send_descriptor") == {"fine": True}
    assert psutil.Process().num_fds() == before


def test_outputs_are_bounded(server: ForkServer) -> None:
    output = new_output_memfd()
    try:
        with server.fork(SERVE, {}, Limits(output_bytes=3 * 2**20)) as child:
            request = {"do": "write_output", "with": {"mebibytes": 10}}
            assert child.call(request, [output]) == {"written": 3 * 2**20, "errno": "EFBIG"}
            grow = {"do": "grow_output", "with": {"size": 2**40}}
            assert child.call(grow, [output])["errno"] == "EFBIG"
        assert len(read_output(output, 3 * 2**20)) == 3 * 2**20
        with pytest.raises(ValueError, match="at most 1000"):
            read_output(output, 1000)
    finally:
        os.close(output)


def test_outputs_of_fixed_size(child: Child) -> None:
    output = new_output_memfd(size=2**20)
    try:
        for size in (0, 2**21):
            grow = {"do": "grow_output", "with": {"size": size}}
            assert child.call(grow, [output])["errno"] == "EPERM"
        assert child.call({"do": "write_output", "with": {"mebibytes": 1}}, [output]) == {
            "written": 2**20
        }
        assert read_output(output, 2**20) == b"x" * 2**20
    finally:
        os.close(output)


def test_inputs_cannot_be_changed(child: Child) -> None:
    source = memfd_from_bytes(b"tensor bytes")
    try:
        reply = child.call({"do": "read_input"}, [source])
        assert reply == {"text": "tensor bytes", "write": {"errno": "EPERM"}}
        assert os.pread(source, 100, 0) == b"tensor bytes"
        with pytest.raises(PermissionError):
            os.ftruncate(source, 0)
    finally:
        os.close(source)


# -- our own faults are not the candidate's -----------------------------------------------------


def test_a_serve_function_that_is_not_there(server: ForkServer) -> None:
    with pytest.raises(IsolationError, match="no attribute 'nothing'"):
        server.fork("isolation_candidates:nothing", {}, Limits())
    with server.fork(SERVE, {}, Limits()) as child:
        do(child, "echo")


def test_a_warm_function_that_raises(server: ForkServer) -> None:
    with pytest.raises(IsolationError, match="broke on purpose"):
        start(server.tier, init={"fail": True})


def test_a_warm_function_that_hangs(server: ForkServer) -> None:
    before = len(_descendants())
    with pytest.raises(IsolationError, match=r"did not answer within 0\.5 s"):
        start(server.tier, init={"hang": True}, startup_seconds=0.5)
    assert len(_descendants()) == before


def test_threads_left_by_warm_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with ForkServer(
        "isolation_candidates:warm_leaving_a_thread", {}, python_path=[HERE], name="demo"
    ):
        assert "left-behind" in caplog.text


def test_plain_warns_loudly(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), start(Tier.PLAIN):
        assert "WITHOUT A SANDBOX" in caplog.text


def test_killing_the_server(server: ForkServer) -> None:
    before = _descendants()
    with start(server.tier) as mortal:
        child = mortal.fork(SERVE, {}, Limits())
        ours = [psutil.Process(pid) for pid in _descendants() - before]
        mortal._process.popen.kill()
        with pytest.raises(IsolationError):
            do(child, "sleep", seconds=1000)
        child.close()
        assert not mortal.alive
        with pytest.raises(IsolationError, match="closed"):
            mortal.fork(SERVE, {}, Limits())
    assert not psutil.wait_procs(ours, timeout=5)[1]


def test_an_unresponsive_server_is_killed(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("galoop.isolation.forkserver.CONTROL_SECONDS", 0.5)
    before = _descendants()
    with start(server.tier) as stuck:
        ours = [psutil.Process(pid) for pid in _descendants() - before]
        for process in ours:
            if process.name() != "bwrap":
                process.suspend()
        with pytest.raises(IsolationError, match="did not answer"):
            stuck.fork(SERVE, {}, Limits())
    assert not psutil.wait_procs(ours, timeout=5)[1]


# -- nothing is left behind ---------------------------------------------------------------------


def _descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_close_leaves_nothing(server: ForkServer) -> None:
    before, fds = _descendants(), psutil.Process().num_fds()
    running = start(server.tier)
    child = running.fork(SERVE, {}, Limits())
    assert _descendants() > before
    running.close()
    running.close()
    assert _descendants() == before
    child.close()
    assert psutil.Process().num_fds() == fds


def test_garbage_collection_leaves_nothing(server: ForkServer) -> None:
    before, fds = _descendants(), psutil.Process().num_fds()
    running = start(server.tier)
    children = [running.fork(SERVE, {}, Limits()) for _ in range(3)]
    with_children = len(_descendants())
    del children
    gc.collect()
    running.fork(SERVE, {}, Limits()).close()  # the next exchange reaps what was dropped
    assert len(_descendants()) == with_children - 3
    del running
    gc.collect()
    assert _descendants() == before
    assert psutil.Process().num_fds() == fds


def test_a_server_outlives_the_thread_that_made_it(server: ForkServer) -> None:
    made: list[ForkServer] = []
    maker = threading.Thread(target=lambda: made.append(start(server.tier)))
    maker.start()
    maker.join()
    time.sleep(0.2)
    with made[0] as running, running.fork(SERVE, {}, Limits()) as child:
        do(child, "echo")


@pytest.mark.parametrize("warm", ["{}", "{'hang': True}"])
def test_sigkill_of_the_trusted_process_leaves_no_orphans(server: ForkServer, warm: str) -> None:
    import subprocess
    import sys

    code = f"""
import sys
from pathlib import Path
from galoop.isolation import ForkServer, Limits
s = ForkServer({WARM!r}, {warm}, tier={str(server.tier)!r}, python_path=[Path({str(HERE)!r})])
c = s.fork({SERVE!r}, {{}}, Limits(seconds=1000))
print("ready", flush=True)
c.call({{"do": "sleep", "with": {{"seconds": 1000}}}})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as trusted:
        assert trusted.stdout is not None
        if warm == "{}":
            assert trusted.stdout.readline() == b"ready\n"
        expected = {Tier.BUBBLEWRAP: 3}.get(server.tier, 1) + (warm == "{}")
        deadline = time.monotonic() + 20
        family: list[psutil.Process] = []
        while len(family) < expected and time.monotonic() < deadline:
            family = psutil.Process(trusted.pid).children(recursive=True)
            time.sleep(0.05)
        time.sleep(0.5)  # let the hanging one get to its hanging
        trusted.kill()
    assert len(family) == expected
    assert not psutil.wait_procs(family, timeout=5)[1]


def test_candidate_errors_survive_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(CandidateTimeout("late", "tail")))
    assert isinstance(error, CandidateError)
    assert (error.reason, error.output) == ("late", "tail")
