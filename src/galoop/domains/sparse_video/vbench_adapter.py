"""VBench proper, in an environment of its own.

The package ``vbench`` 0.1.5 pins transformers 4.33.2 and numpy below 2, so it cannot be installed
beside galoop. :class:`VBenchEnvironment` is given the Python of another environment in which it is
installed, and runs there as a subprocess. It fetches its own network weights on first use.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galoop.errors import InfrastructureError, UsageError

CUSTOM_DIMENSIONS = (
    "subject_consistency",
    "background_consistency",
    "motion_smoothness",
    "dynamic_degree",
    "aesthetic_quality",
    "imaging_quality",
)
"""The six dimensions that VBench evaluates on anybody's videos (``custom_input``)."""


@dataclass(frozen=True)
class VBenchEnvironment:
    """Another environment with VBench in it.

    Attributes
    ----------
    python : Path
        Its interpreter.
    full_info : Path
        VBench's ``VBench_full_info.json`` (the package asks for it in every mode).
    device : str
    fps : int
        Frames a second of the files that it is given.
    timeout : float
        Seconds.
    """

    python: Path
    full_info: Path
    device: str = "cuda"
    fps: int = 8
    timeout: float = 3600.0

    def evaluate(
        self, clips: Sequence[NDArray[Any]], prompts: Sequence[str], dimensions: Sequence[str]
    ) -> dict[str, float]:
        """VBench's scores, one a dimension, over all clips.

        Parameters
        ----------
        clips : sequence of array
            [F, H, W, 3] in [0, 1].
        prompts : sequence of str
        dimensions : sequence of str
            Of :data:`CUSTOM_DIMENSIONS`.

        Raises
        ------
        UsageError
            A dimension or a number of clips that cannot be, or no interpreter.
        InfrastructureError
            The subprocess failed; with the end of what it said.
        """
        unknown = [name for name in dimensions if name not in CUSTOM_DIMENSIONS]
        if unknown or not dimensions:
            raise UsageError(
                f"VBench cannot judge {', '.join(unknown) or 'nothing'} on own videos",
                f"one or more of {', '.join(CUSTOM_DIMENSIONS)}",
            )
        if not clips or len(clips) != len(prompts):
            raise UsageError(f"{len(clips)} clips and {len(prompts)} prompts")
        if not Path(self.python).is_file():
            raise UsageError(f"no Python at {self.python}", "name VBench's own interpreter")
        with TemporaryDirectory(prefix="galoop-vbench-") as name:
            return self._run(Path(name), clips, prompts, dimensions)

    def _run(
        self, folder: Path, clips: Sequence[NDArray[Any]], prompts: Sequence[str],
        dimensions: Sequence[str],
    ) -> dict[str, float]:  # fmt: skip
        files = []
        for index, clip in enumerate(clips):
            files.append(str(folder / f"{index:05d}.npy"))
            np.save(files[-1], clip.astype(np.float32))
        answer = folder / "answer.json"
        request = {
            "folder": str(folder), "frames": files, "prompts": list(prompts), "fps": self.fps,
            "dimensions": list(dimensions), "device": self.device, "answer": str(answer),
            "full_info": str(self.full_info),
        }  # fmt: skip
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        runner = Path(__file__).with_name("_vbench_runner.py")
        # its own packages, not ours
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        try:
            done = subprocess.run(
                [str(self.python), str(runner), str(folder / "request.json")],
                capture_output=True, text=True, timeout=self.timeout, env=environment, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"VBench did not run: {error}") from None
        if done.returncode or not answer.is_file():
            last = (done.stderr or done.stdout).strip()[-600:]
            raise InfrastructureError(
                f"VBench's process ended with {done.returncode}: {last}",
                "run the same interpreter by hand to see whether `import vbench` works",
            )
        scores = json.loads(answer.read_text(encoding="utf-8"))
        return {name: float(scores[name]) for name in dimensions}
