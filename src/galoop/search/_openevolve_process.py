"""OpenEvolve 0.4.1 in a process of its own. Run by :mod:`galoop.search.openevolve`, never imported.

It decides which program is changed next: MAP-Elites grids on islands, an archive, migration. It
knows programs as texts whose first line names them, writes none, runs none, scores none, and keeps
nothing on disk: for a child it names the parent and is told the child's text and figures.

Three things of OpenEvolve are replaced here: its pool of worker processes (children would be taken
in as they come) and its random UUIDs (parents are drawn from sets of them), so that the same seed
leads to the same search, and its log folder. An empty module takes the place of `openai`, which
OpenEvolve imports for model clients that are not used here: no client of a network is loaded, and
that was most of the time until the first question. Nothing of galoop is imported.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import uuid
from concurrent.futures import Future
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1
_ENDLESS = 10**9


class Line:
    """JSON lines to and from the process that decides everything."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._file = self._socket.makefile("rb")

    def read(self) -> dict[str, Any]:
        """The next message; the end of the stream ends this process."""
        line = self._file.readline()
        if not line.endswith(b"\n"):
            os._exit(0)
        return dict(json.loads(line))

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and wait for the answer to it."""
        try:
            self._socket.sendall(json.dumps(message).encode("utf-8") + b"\n")
        except OSError:
            os._exit(0)
        return self.read()


def configure(told: dict[str, Any]) -> Any:
    """OpenEvolve's configuration: its own defaults, scaled to searches of tens of programs."""
    from openevolve.config import Config, DatabaseConfig, EvaluatorConfig

    return Config(
        max_iterations=_ENDLESS,
        checkpoint_interval=_ENDLESS,
        random_seed=told["seed"],
        language="text",
        evaluator=EvaluatorConfig(
            timeout=_ENDLESS, max_retries=0, cascade_evaluation=False, parallel_evaluations=1
        ),
        database=DatabaseConfig(
            log_prompts=False,
            num_islands=told["islands"],
            archive_size=told["archive"],
            migration_interval=told["migration"],
            feature_dimensions=list(told["features"]),
            random_seed=told["seed"],
        ),
    )


def run(line: Line) -> None:
    """Search until the other side ends it."""
    from openevolve import controller, process_parallel

    told = line.read()
    first = {program["text"]: program["metrics"] for program in told["programs"]}
    texts = list(first)

    class Given:
        """In the place of OpenEvolve's evaluator: the programs it begins with have figures."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        async def evaluate_program(self, text: str, program_id: str = "") -> dict[str, Any]:
            return dict(first[text])

        def get_pending_artifacts(self, program_id: str) -> None:
            return None

    class Inline:
        """In the place of the pool: one child at a time, in order."""

        def submit(self, function: Any, *args: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(function(*args))
            return done

        def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
            pass

    def child(
        iteration: int, snapshot: dict[str, Any], parent_id: str, inspirations: list[str]
    ) -> Any:
        parent = snapshot["programs"][parent_id]
        answer = line.ask({"parent": parent["code"].partition("\n")[0]})
        if not answer["keep"]:
            return process_parallel.SerializableResult(error="not kept", iteration=iteration)
        program = process_parallel.Program(
            id=str(uuid.uuid4()),
            code=answer["text"],
            language="text",
            parent_id=parent_id,
            generation=parent["generation"] + 1,
            metrics=answer["metrics"],
            iteration_found=iteration,
            metadata={"parent_metrics": parent["metrics"]},
        )
        return process_parallel.SerializableResult(
            child_program_dict=program.to_dict(),
            parent_id=parent_id,
            iteration=iteration,
            target_island=snapshot["sampling_island"],
        )

    class Quiet(controller.OpenEvolve):
        """OpenEvolve's controller without files."""

        def _setup_logging(self) -> None:
            pass

        def _load_initial_program(self) -> str:
            return texts[0]

    def start(self: Any) -> None:
        self.executor = Inline()

    controller.Evaluator = Given
    process_parallel._run_iteration_worker = child
    process_parallel.ProcessParallelController.start = start
    engine = Quiet("program.txt", "", configure(told), output_dir="/")
    engine.island_initial_program_codes = dict(enumerate(texts[: told["islands"]]))
    del engine.island_initial_program_codes[0]
    asyncio.run(engine.run())


def confine() -> None:
    """Die with the parent even while busy, load no client, and make names reproducible."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    multiprocessing.set_start_method("fork")
    clients: Any = ModuleType("openai")
    clients.OpenAI = clients.AzureOpenAI = clients.AsyncOpenAI = object
    sys.modules["openai"] = clients
    names = random.Random(0)
    uuid.uuid4 = lambda: uuid.UUID(int=names.getrandbits(128), version=4)
    logging.basicConfig(level=logging.ERROR)


if __name__ == "__main__":
    confine()
    run(Line(int(sys.argv[1])))
