"""PSNR, SSIM, flickering and the bounded score, against closed forms and formulas written out."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from galoop.domains.sparse_video.metrics import (
    Lpips,
    compare,
    criterion_score,
    fidelity,
    means,
    psnr,
    ssim,
    temporal_flickering,
)
from galoop.domains.sparse_video.vbench_adapter import VBenchEnvironment
from galoop.errors import InfrastructureError, UsageError


def clip(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((4, 24, 24, 3))


def test_psnr_closed_forms() -> None:
    zero = np.zeros((2, 12, 12, 3))
    assert psnr(zero, zero) == math.inf
    assert psnr(zero, zero + 1) == pytest.approx(0.0)
    assert psnr(zero, zero + 0.1) == pytest.approx(20.0)
    half = zero.copy()
    half[0] = 0.1  # the mean square error is over all frames
    assert psnr(zero, half) == pytest.approx(20 + 10 * math.log10(2))


def test_psnr_equals_scikit_image() -> None:
    skimage = pytest.importorskip("skimage.metrics", reason="needs the extra `video`")
    a, b = clip(0), clip(1)
    wanted = skimage.peak_signal_noise_ratio(a, b, data_range=1.0)
    assert psnr(a, b) == pytest.approx(wanted)


def test_ssim_equals_its_formula() -> None:
    """Wang et al.'s formula with an explicit window, away from the borders' padding."""
    pytest.importorskip("skimage.metrics", reason="needs the extra `video`")
    offsets = np.arange(-5, 6)
    window = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(window, window) / window.sum() ** 2
    a, b = clip(0), np.clip(clip(0) + 0.2 * clip(1) - 0.1, 0, 1)
    values = []
    for x, y in zip(a, b, strict=True):
        for channel in range(3):
            for row in range(5, 19):
                for column in range(5, 19):
                    box = (slice(row - 5, row + 6), slice(column - 5, column + 6), channel)
                    p, q = x[box], y[box]
                    mp, mq = (window * p).sum(), (window * q).sum()
                    vp, vq = (window * p * p).sum() - mp**2, (window * q * q).sum() - mq**2
                    cov = (window * p * q).sum() - mp * mq
                    values.append(
                        (2 * mp * mq + 1e-4) * (2 * cov + 9e-4)
                        / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4))
                    )  # fmt: skip
    assert ssim(a, b) == pytest.approx(np.mean(values), abs=1e-6)
    assert ssim(a, a) == pytest.approx(1.0)
    with pytest.raises(UsageError, match="too small"):
        ssim(np.zeros((2, 8, 8, 3)), np.zeros((2, 8, 8, 3)))


def test_flickering() -> None:
    still = np.full((5, 4, 4, 3), 0.5)
    assert temporal_flickering(still) == 1.0
    blinking = np.zeros((5, 4, 4, 3))
    blinking[::2] = 1.0
    assert temporal_flickering(blinking) == 0.0
    step = np.zeros((3, 4, 4, 3))
    step[1:] = 51 / 255  # one change of 51 levels in two pairs of frames
    assert temporal_flickering(step) == pytest.approx(1 - 51 / 255 / 2)
    with pytest.raises(UsageError, match="two frames"):
        temporal_flickering(still[:1])


def test_fidelity_is_linear_in_decibels() -> None:
    assert [fidelity(x) for x in (-3, 10, 25, 40, 60, math.inf)] == [0, 0, 0.5, 1, 1, 1]
    assert fidelity(28) - fidelity(22) == pytest.approx(0.2)
    with pytest.raises(UsageError):
        fidelity(math.nan)


def test_the_score_is_bounded_by_the_references() -> None:
    assert criterion_score(1.0, math.inf) == 1.0  # φ itself
    assert criterion_score(0.0, math.inf) == 0.0  # a prompt that φ does not show
    assert criterion_score(0.8, 25.0) == pytest.approx(0.4)
    with pytest.raises(UsageError):
        criterion_score(1.2, 20.0)


def test_compare_and_means() -> None:
    pytest.importorskip("skimage.metrics", reason="needs the extra `video`")
    a, b = clip(0), clip(1)
    row = compare(a, b)
    assert set(row) == {"psnr", "ssim", "flickering", "flickering_lost"}
    assert means([row, compare(a, a)])["psnr"] == math.inf
    assert means([row, row]) == pytest.approx(row)
    assert means([]) == {}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros((2, 4, 4, 3)), np.zeros((3, 4, 4, 3)), "cannot be compared"),
        (np.zeros((4, 4, 3)), np.zeros((4, 4, 3)), "frames are"),
        (np.zeros((2, 4, 4, 3)), np.full((2, 4, 4, 3), 255.0), "outside"),
        (np.zeros((2, 4, 4, 3)), np.full((2, 4, 4, 3), np.nan), "outside"),
    ],
)
def test_bad_clips_are_refused(first: np.ndarray, second: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        psnr(first, second)


class FakeLpips(torch.nn.Module):
    """In the place of ``lpips.LPIPS``: its backbone's keys, and a distance that uses them."""

    def __init__(self, net: str, pnet_rand: bool, verbose: bool) -> None:
        super().__init__()
        assert pnet_rand  # nothing is ever downloaded
        self.net = torch.nn.Module()
        self.net.slice1 = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3))
        self.net.slice2 = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv2d(2, 2, 1))

    def forward(self, a: torch.Tensor, b: torch.Tensor, normalize: bool) -> torch.Tensor:
        assert normalize  # frames lie in [0, 1]
        x, y = (self.net.slice2(self.net.slice1(z * 2 - 1)) for z in (a, b))
        return (x - y).square().mean((1, 2, 3), keepdim=True)


@pytest.fixture
def lpips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lpips", types.SimpleNamespace(LPIPS=FakeLpips))


@pytest.mark.usefixtures("lpips")
def test_lpips_is_called_so_only_with_a_backbone(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    random = Lpips(None)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.label == "lpips-random"
    a, b = clip(0), clip(1)
    assert random(a, a) == 0.0
    assert random(a, b) == Lpips(None)(a, b) > 0
    weights = {
        "features.0.weight": torch.ones(2, 3, 3, 3), "features.0.bias": torch.zeros(2),
        "features.1.weight": torch.ones(2, 2, 1, 1), "features.1.bias": torch.zeros(2),
        "classifier.1.weight": torch.zeros(1),
    }  # fmt: skip
    torch.save(weights, tmp_path / "alex.pth")
    real = Lpips(tmp_path / "alex.pth")
    assert real.label == "lpips-alex"
    assert torch.equal(real._model.net.slice1[0].weight, weights["features.0.weight"])
    torch.save({"features.0.weight": torch.ones(2, 3, 3, 3)}, tmp_path / "other.pth")
    with pytest.raises(UsageError, match=r"it has no features\.0\.bias"):
        Lpips(tmp_path / "other.pth")
    with pytest.raises(UsageError, match="no backbone weights"):
        Lpips(tmp_path / "none.pth")


def test_lpips_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lpips", None)
    with pytest.raises(UsageError, match="pip install lpips"):
        Lpips(None)


FAKE_VBENCH = """
import json, pathlib
class VBench:
    def __init__(self, device, info, output):
        self.device, self.info, self.output = device, info, pathlib.Path(output)
    def evaluate(self, videos_path, name, prompt_list, dimension_list, mode):
        assert mode == "custom_input"
        assert sorted(prompt_list) == sorted(map(str, pathlib.Path(videos_path).iterdir()))
        self.output.mkdir()
        found = {d: [len(prompt_list) / 10, []] for d in dimension_list}
        (self.output / f"{name}_eval_results.json").write_text(json.dumps(found))
"""
FAKE_IO = """
import pathlib
def write_video(name, frames, fps, options):
    assert str(frames.dtype) == "uint8" and options == {"crf": "0"}
    pathlib.Path(name).write_text(str(tuple(frames.shape)))
"""


@pytest.fixture
def environment(tmp_path: Path) -> VBenchEnvironment:
    """This interpreter behind a script that has fake packages on its path."""
    packages = tmp_path / "packages"
    (packages / "torchvision").mkdir(parents=True)
    (packages / "vbench.py").write_text(FAKE_VBENCH)
    (packages / "torchvision" / "__init__.py").write_text("")
    (packages / "torch.py").write_text("def from_numpy(x):\n    return x\n")
    (packages / "torchvision" / "io.py").write_text(FAKE_IO)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return VBenchEnvironment(python, tmp_path / "info.json", device="cpu", timeout=120)


def test_vbench_runs_in_another_process(environment: VBenchEnvironment) -> None:
    frames = [np.random.default_rng(i).random((3, 8, 8, 3)) for i in range(2)]
    dimensions = ["motion_smoothness", "imaging_quality"]
    scores = environment.evaluate(frames, ["a", "b"], dimensions)
    assert scores == dict.fromkeys(dimensions, 0.2)


def test_vbench_failures_are_ours_and_say_why(environment: VBenchEnvironment) -> None:
    frames = [np.zeros((2, 8, 8, 3))]
    broken = environment.python.with_name("packages") / "vbench.py"
    broken.write_text("raise ImportError('needs numpy<2')")
    with pytest.raises(InfrastructureError, match="needs numpy<2"):
        environment.evaluate(frames, ["a"], ["motion_smoothness"])
    with pytest.raises(UsageError, match="temporal_flickering"):
        environment.evaluate(frames, ["a"], ["temporal_flickering"])
    with pytest.raises(UsageError, match="no Python at"):
        VBenchEnvironment(Path("/nowhere"), Path("x")).evaluate(
            frames, ["a"], ["motion_smoothness"]
        )
    with pytest.raises(UsageError, match="1 clips and 2 prompts"):
        environment.evaluate(frames, ["a", "b"], ["motion_smoothness"])
