"""One session of an agent: folders made, program started, calls taken, end enforced."""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from galoop.config import AgentConfig, ExperimentConfig
from galoop.proposers.agents import sandbox, task
from galoop.proposers.agents.adapter import Adapter, Bill, Job, Reading
from galoop.proposers.agents.prices import estimate
from galoop.proposers.agents.process import AgentProcess
from galoop.proposers.agents.server import Call, EvaluationServer
from galoop.proposers.agents.worktree import TASK, RefusedTree, Worktree, scrub
from galoop.proposers.protocol import Cost, Request
from galoop.types import Candidate

#: What is known of a session, and what its agent printed.
FACTS, TRANSCRIPT = "session.json", "transcript.jsonl"
_POLL_SECONDS = 0.1
_SHORTEST_KEY = 8
#: Calls of the evaluation command beyond which an agent is taken to be stuck.
_MAX_CALLS = 10_000


@dataclass(frozen=True)
class Ended:
    """How a session ended.

    Attributes
    ----------
    status : {"finished", "failed", "timeout", "flooded", "stopped"}
        ``stopped``: by us, because the search was over.
    reason : str
        In words.
    """

    status: str
    reason: str


class Session:
    """An agent at work.

    Parameters
    ----------
    adapter : Adapter
    config : ExperimentConfig
        Tables ``agent`` and ``isolation``.
    folder : Path
        A new folder for everything of this session.
    request : Request
        What is asked for; its parent's sources are put into the worktree, and an agent that can
        holds to what is left of the search's cap in dollars.
    evaluations : int
        How often the agent may have its tree evaluated; 0 gives it no evaluation command.
    suites : bool
        Whether the evaluation command knows the suites.

    Attributes
    ----------
    ended : Ended or None
        None while it runs.
    refused : bool
        Whether the tree that the agent left at its end was refused.

    Raises
    ------
    UsageError, IsolationError, InfrastructureError
        If the agent cannot be started as the experiment asks.
    """

    def __init__(
        self,
        adapter: Adapter,
        config: ExperimentConfig,
        folder: Path,
        request: Request,
        evaluations: int = 0,
        suites: bool = False,
    ) -> None:
        self._adapter = adapter
        self._knobs = config.agent
        self.folder = folder
        self._bill = Bill()
        self._tools: dict[Path, bytes] = {}
        self._calls = 0
        self._spent = self._charged = 0.0
        self.ended: Ended | None = None
        self.refused = False
        sandboxed = sandbox.may_sandbox(config.isolation.tier, config.isolation.require)
        program = sandbox.find_program(self._knobs.command, adapter)
        self._server = EvaluationServer() if evaluations else None
        try:
            place = self._make_place(sandboxed)
            evaluate = str(place.seen("tools") / "gal-evaluate") if evaluations else ""
            words = task.text(request, evaluate, evaluations, self._knobs.seconds, suites)
            start = request.parent.candidate.files if request.parent else {}
            self.worktree = Worktree(
                place.worktree, request.task.kind, words, start, adapter.leavings
            )
            self.worktree.create()
            self._install_tools(place)
            self._start(place, program, evaluate, request.dollars_left)
        except BaseException:
            self._close_server()
            raise
        self._since = time.monotonic()

    def _make_place(self, sandboxed: bool) -> sandbox.Place:
        self.folder.mkdir(parents=True)
        folder = self.folder.absolute()
        (folder / "home" / "tmp").mkdir(parents=True)
        tools = folder / "tools"
        tools.mkdir()
        socket = self._server.folder if self._server else tools
        return sandbox.Place(folder / "worktree", folder / "home", tools, socket, sandboxed)

    def _install_tools(self, place: sandbox.Place) -> None:
        """The evaluation command: a client that holds no address but its socket's."""
        self._tools = {}
        for name in ("client.py", *self._adapter.files):
            self._tools[place.tools / name] = Path(__file__).with_name(name).read_bytes()
        if self._server is not None:
            script = self._command(place).encode("utf-8")
            self._tools[place.tools / "gal-evaluate"] = script
        for path, data in self._tools.items():
            path.write_bytes(data)
            path.chmod(0o755 if path.name == "gal-evaluate" else 0o644)

    def _command(self, place: sandbox.Place) -> str:
        assert self._server is not None
        socket = place.seen("socket") / self._server.path.name
        line = [sys.executable, "-I", str(place.seen("tools") / "client.py")]
        line += ["--socket", str(socket)]
        return f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n'

    def _tools_changed(self) -> bool:
        """Whether the agent edited what it was given; in a sandbox it cannot."""
        try:
            return any(path.read_bytes() != data for path, data in self._tools.items())
        except OSError:
            return True

    def _start(
        self, place: sandbox.Place, program: Path, evaluate: str, max_dollars: float | None
    ) -> None:
        knobs = self._knobs
        path = str(place.seen("worktree") / TASK)
        job = Job(
            prompt=task.prompt(path, evaluate),
            program=str(program),
            worktree=str(place.seen("worktree")),
            home=str(place.seen("home")),
            tools=str(place.seen("tools")),
            task=path,
            model=knobs.model,
            arguments=(*knobs.command[1:], *knobs.arguments),
            seconds=knobs.seconds,
            max_dollars=max_dollars,
            sandboxed=place.sandboxed,
        )
        keys = (*self._adapter.keys, *knobs.environment)
        argv = self._adapter.argv(job)
        passed = (*keys, *self._adapter.addresses)
        variables = sandbox.environment(place, program, passed, self._adapter.environment(job))
        self.secrets = _credentials(self._adapter, knobs, variables)
        line = argv
        if place.sandboxed:
            readable = [Path(p).expanduser() for p in knobs.readable]
            line = sandbox.command(
                place, argv, program, readable, knobs.network, hidden=self.folder
            )
        self._facts: dict[str, Any] = {
            "adapter": self._adapter.name,
            "model": knobs.model,
            "sandboxed": place.sandboxed,
        }
        self._write()
        self._process = AgentProcess(
            line,
            variables,
            place.worktree,
            self._adapter.stdin(job),
            self._adapter.parser(),
            self.folder / TRANSCRIPT,
            self.secrets,
            guarded=not place.sandboxed,
        )

    # -- while it runs ----------------------------------------------------------------------

    def next(self) -> Call | Ended:
        """The agent's next call of the evaluation command, or how the session ended."""
        self._since = time.monotonic()
        while self.ended is None:
            over = self._over()
            if over is not None:
                self._finish(over)
                break
            try:
                call = self._server.calls.get(timeout=_POLL_SECONDS) if self._server else None
            except queue.Empty:
                continue
            if call is None:
                time.sleep(_POLL_SECONDS)
                continue
            self._calls += 1
            # The time until the next call of this method is an evaluation's, not the agent's.
            self._spent += time.monotonic() - self._since
            return call
        assert self.ended is not None
        return self.ended

    def _over(self) -> Ended | None:
        process = self._process
        if process.flooded:
            return Ended("flooded", "the agent printed too much and was ended")
        if self._calls > _MAX_CALLS:
            return Ended("flooded", f"the agent called for evaluations {self._calls} times")
        if self._spent + time.monotonic() - self._since > self._knobs.seconds:
            return Ended("timeout", f"the agent ran over its {self._knobs.seconds:g} s")
        if process.running:
            return None
        process.end()  # all that it printed has been read after this
        code, error = process.code, process.parser.reading.error
        if code == 0 and not error:
            return Ended("finished", "the agent ended")
        words = error or process.last_words().rpartition("\n")[2] or "it said nothing"
        return Ended("failed", f"the agent failed with exit code {code}: {words[:500]}")

    def stop(self, patience: float) -> Ended:
        """End the session: after ``patience`` seconds it is killed; idempotent."""
        self._since = time.monotonic()
        self._close_server()
        if self.ended is None:
            self._process.end(patience)
            self._finish(Ended("stopped", "the search was over"))
        assert self.ended is not None
        return self.ended

    def _finish(self, ended: Ended) -> None:
        self._process.end()
        self._spent += time.monotonic() - self._since
        self._since = time.monotonic()
        self._close_server()
        self.ended = ended
        reading = self._process.parser.reading
        self._facts |= {
            "status": ended.status,
            "reason": ended.reason,
            "exit_code": self._process.code,
            "input_tokens": reading.input_tokens,
            "output_tokens": reading.output_tokens,
            "dollars": reading.dollars,
            "cost": asdict(_whole(self._bill.after(reading), reading, self._knobs, self._spent)),
            "seconds": round(self._spent, 3),
            "text": reading.text,
            "tools_changed": self._tools_changed(),
            "stderr": self._process.last_words(),
        }
        self._write()
        shutil.rmtree(self.folder / "home", ignore_errors=True)

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()

    # -- what it leaves ---------------------------------------------------------------------

    def cost(self) -> Cost:
        """What was spent since the last call of this method.

        While the agent works, dollars that it has not reported count as none; at its end they are
        estimated from all its tokens if it never reported any, or unknown.
        """
        tokens_in, tokens_out, dollars = self._bill.since(self._process.parser.reading)
        seconds = max(0.0, self._spent - self._charged)
        self._charged = self._spent
        reading = self._process.parser.reading
        if self.ended is None or reading.dollars is not None:
            return Cost(dollars, tokens_in, tokens_out, seconds)
        whole = _whole(self._bill, reading, self._knobs, self._spent)
        return replace(whole, input_tokens=tokens_in, output_tokens=tokens_out, seconds=seconds)

    def about(self) -> dict[str, Any]:
        """Small facts for the log."""
        sandboxed = bool(self._facts["sandboxed"])
        return {
            "agent": self._adapter.name,
            "session": self.folder.name,
            "sandboxed": sandboxed,
            "seconds": round(self._spent, 3),
        }

    def read(self, note: str) -> Candidate:
        """What lies in the worktree now (see :meth:`Worktree.read`)."""
        try:
            return self.worktree.read(self._masked(note), self.secrets)
        except RefusedTree as refused:
            raise RefusedTree(self._masked(str(refused))) from None

    def scrub(self) -> None:
        """Take credentials out of the worktree of an agent that has ended, once it was read."""
        scrub(self.worktree.path, self.secrets)

    def _masked(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "[credential]")
        return text

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append to the session's list of what was handed in."""
        with open(self.folder / "submissions.jsonl", "a", encoding="utf-8") as file:
            text = json.dumps(entry, ensure_ascii=True, default=str)
            file.write(self._masked(text) + "\n")

    def _write(self) -> None:
        write_facts(self.folder, self._facts)


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write ``session.json``, wholly or not at all."""
    new = folder / "session.new"
    new.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    new.replace(folder / FACTS)


def whole_cost(folder: Path, adapter: Adapter, knobs: AgentConfig) -> Cost | None:
    """What all of an ended session cost; None while it runs, or when its files are unreadable.

    A session that says nothing of its end was killed together with this program: its transcript is
    read again, the result is kept, and its folders are tidied up as at every other end.
    """
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        if "cost" not in facts:
            lines = (folder / TRANSCRIPT).read_bytes().splitlines()
            parser = adapter.parser()
            for line in lines:
                parser.feed(line)
            whole = _whole(Bill().after(parser.reading), parser.reading, knobs, 0.0)
            facts |= {"status": "killed", "reason": "this program was killed"}
            facts["cost"] = asdict(whole)
            scrub(folder / "worktree", _credentials(adapter, knobs, os.environ))
            shutil.rmtree(folder / "home", ignore_errors=True)
            write_facts(folder, facts)
        return Cost(**facts["cost"])
    except (OSError, ValueError, TypeError):
        return None


def _credentials(adapter: Adapter, knobs: AgentConfig, variables: Mapping[str, str]) -> list[str]:
    """Values that must not stay in a run folder; shorter ones would match ordinary words."""
    names = (*adapter.keys, *knobs.environment)
    return [variables[name] for name in names if len(variables.get(name, "")) >= _SHORTEST_KEY]


def _whole(bill: Bill, reading: Reading, knobs: AgentConfig, seconds: float) -> Cost:
    """The cost of a whole session: as reported, else estimated from its tokens, else unknown."""
    if reading.dollars is not None:
        return Cost(bill.dollars, bill.input_tokens, bill.output_tokens, seconds)
    found = estimate(knobs, bill.input_tokens, bill.output_tokens)
    return replace(
        found,
        input_tokens=bill.input_tokens,
        output_tokens=bill.output_tokens,
        seconds=seconds,
    )
