"""Runs inside VBench's own environment: reads a request, writes videos, evaluates, writes figures.

This file imports nothing of galoop, because galoop is not installed there. Usage:
``python _vbench_runner.py request.json``; the request names raw frames (``.npy``), prompts,
dimensions and the file for the answer.
"""

import json
import sys
from pathlib import Path


def main(path: str) -> None:
    """Evaluate the clips of one request."""
    # Python puts this file's folder first on the path, where galoop's own modules would be found
    # in the place of packages of the same name.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != here]
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    import numpy as np
    import torch
    from torchvision.io import write_video
    from vbench import VBench

    folder = Path(request["folder"])
    videos = folder / "videos"
    videos.mkdir(exist_ok=True)
    prompts = {}
    for index, frames in enumerate(request["frames"]):
        clip = np.round(np.load(frames) * 255).astype("uint8")
        name = str(videos / f"{index:05d}.mp4")
        # constant rate factor 0: lossless up to the change of colour space
        write_video(name, torch.from_numpy(clip), fps=request["fps"], options={"crf": "0"})
        prompts[name] = request["prompts"][index]
    bench = VBench(request["device"], request["full_info"], str(folder / "results"))
    bench.evaluate(
        videos_path=str(videos),
        name="galoop",
        prompt_list=prompts,
        dimension_list=request["dimensions"],
        mode="custom_input",
    )
    (found,) = (folder / "results").glob("galoop_eval_results.json")
    data = json.loads(found.read_text(encoding="utf-8"))
    scores = {name: float(value[0]) for name, value in data.items()}
    Path(request["answer"]).write_text(json.dumps(scores), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
