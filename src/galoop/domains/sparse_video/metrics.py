"""How far a clip is from the reference's: PSNR, SSIM, LPIPS, flickering, and a bounded score.

All take raw frames [F, H, W, 3] in [0, 1], of φ and A from the same noise, never a decoded video
file: a codec's errors would be larger than what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from galoop.errors import UsageError

Array = NDArray[Any]

LOW_DB, HIGH_DB = 10.0, 40.0
"""Where :func:`fidelity` is 0 and 1. 10 dB is a clip of its own; at 40 dB nothing is to be seen."""


def psnr(reference: Array, other: Array) -> float:
    """Peak signal-to-noise ratio of a clip in dB: 10·log₁₀(1 / MSE over all frames).

    Parameters
    ----------
    reference, other : array
        [F, H, W, 3] in [0, 1].

    Returns
    -------
    float
        Infinite for equal clips.
    """
    first, second = _pair(reference, other)
    error = float(np.mean((first - second) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(reference: Array, other: Array) -> float:
    """Structural similarity, the mean over frames, at most 1.

    Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity", IEEE
    TIP 13(4), 2004, with its Gaussian window (σ = 1.5, 11 × 11), on each channel, by scikit-image.

    Raises
    ------
    UsageError
        Frames smaller than the window, or scikit-image is not installed.
    """
    try:
        from skimage.metrics import structural_similarity
    except ImportError:
        raise UsageError("SSIM needs scikit-image", "pip install 'galoop[video]'") from None
    first, second = _pair(reference, other)
    if min(first.shape[1:3]) < 11:
        raise UsageError(f"frames of {first.shape[1:3]} are too small for SSIM's window of 11")
    values = [
        structural_similarity(
            a, b, data_range=1.0, channel_axis=-1, gaussian_weights=True, sigma=1.5,
            use_sample_covariance=False,
        )
        for a, b in zip(first, second, strict=True)
    ]  # fmt: skip
    return float(np.mean(values))


def temporal_flickering(frames: Array) -> float:
    """VBench's temporal flickering: (255 − MAE of neighbouring frames) / 255, on 8-bit frames.

    Huang et al., "VBench", CVPR 2024 (arXiv:2311.17982). It is the only one of VBench's sixteen
    dimensions that needs no network weights. VBench applies it to clips that are meant to be still;
    for a clip that moves it says how much changes, and only the difference between two clips of the
    same prompt says anything.
    """
    clip = _checked(frames)
    if len(clip) < 2:
        raise UsageError("flickering needs at least two frames")
    levels = np.round(clip * 255)
    errors = np.abs(np.diff(levels, axis=0)).mean((1, 2, 3))
    return float((255.0 - errors.mean()) / 255.0)


def fidelity(decibels: float, low: float = LOW_DB, high: float = HIGH_DB) -> float:
    """A PSNR as a number in [0, 1]: linear in dB from ``low`` (0) to ``high`` (1), clipped.

    With the defaults 6 dB are 0.2, anywhere in between. Equal clips have 1.
    """
    if math.isnan(decibels):
        raise UsageError("a PSNR that is not a number", "the clips hold something not finite")
    return min(1.0, max(0.0, (decibels - low) / (high - low)))


def criterion_score(reference_check: float, decibels: float) -> float:
    """The score of a system on one prompt, in [0, 1]: check(φ's clip) × fidelity(PSNR to φ's clip).

    φ's own clip has infinite PSNR, so φ scores what its clip scores against its prompt, and τ₀ asks
    that dense clips show what they are asked for. An artifact can score at most that much, and
    loses a share for every dB. A clip that φ itself gets wrong says nothing about an artifact.

    Parameters
    ----------
    reference_check : float
        :attr:`galoop.domains.sparse_video.check.Verdict.score`, or 1/0 for passing, of φ's clip.
    decibels : float
        PSNR between the system's clip and φ's, from the same noise.
    """
    if not 0.0 <= reference_check <= 1.0:
        raise UsageError(f"a check of {reference_check}", "it lies in [0, 1]")
    return reference_check * fidelity(decibels)


def compare(reference: Array, other: Array, lpips: Lpips | None = None) -> dict[str, float]:
    """All figures between two clips of one prompt, by name; LPIPS only with a backbone."""
    found = {
        "psnr": psnr(reference, other),
        "ssim": ssim(reference, other),
        "flickering": temporal_flickering(other),
        "flickering_lost": temporal_flickering(reference) - temporal_flickering(other),
    }
    if lpips is not None:
        found[lpips.label] = lpips(reference, other)
    return found


@dataclass
class Lpips:
    """LPIPS through the package ``lpips``, with a real backbone or under another name.

    Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR
    2018. The package brings its linear heads only; the backbone is torchvision's, which is
    downloaded. galoop downloads nothing: it takes the weights from a file.

    Parameters
    ----------
    weights : Path or None
        torchvision's state dict of the backbone (for example ``alexnet-owt-7be5be79.pth``). None
        makes a random backbone, whose figures are no LPIPS and are labelled ``lpips-random``.
    net : {"alex", "vgg", "squeeze"}
    seed : int
        Of the random backbone.

    Raises
    ------
    UsageError
        The package is missing, or the file does not fit.
    """

    weights: Path | None
    net: Literal["alex", "vgg", "squeeze"] = "alex"
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            import lpips
        except ImportError:
            raise UsageError("LPIPS needs the package lpips", "pip install lpips") from None
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self._model = lpips.LPIPS(net=self.net, pnet_rand=True, verbose=False).eval()
        if self.weights is not None:
            _load_backbone(self._model.net, self.weights)

    @property
    def label(self) -> str:
        """The name of its figures."""
        return f"lpips-{self.net}" if self.weights is not None else "lpips-random"

    def __call__(self, reference: Array, other: Array) -> float:
        """The mean over frames; 0 for equal clips."""
        import torch

        first, second = (
            torch.from_numpy(x).float().permute(0, 3, 1, 2) for x in _pair(reference, other)
        )
        with torch.no_grad():
            return float(self._model(first, second, normalize=True).mean())


def _load_backbone(net: Any, path: Path) -> None:
    """Put torchvision's weights into lpips's slices, whose keys are ``slice1.0.weight``, …."""
    import torch

    if not path.is_file():
        raise UsageError(f"no backbone weights at {path}", "give torchvision's state dict")
    given = torch.load(path, weights_only=True, map_location="cpu")
    wanted = net.state_dict()
    renamed = {key: f"features.{key.partition('.')[2]}" for key in wanted}
    missing = [source for source in renamed.values() if source not in given]
    if missing:
        raise UsageError(
            f"{path} is not the backbone that was asked for: it has no {missing[0]}",
            "take the state dict of the same network",
        )
    try:
        net.load_state_dict({key: given[source] for key, source in renamed.items()})
    except RuntimeError as error:
        raise UsageError(f"{path} does not fit the backbone: {str(error)[:200]}") from None


def _pair(reference: Array, other: Array) -> tuple[Array, Array]:
    first, second = _checked(reference), _checked(other)
    if first.shape != second.shape:
        raise UsageError(f"clips of {first.shape} and {second.shape} cannot be compared")
    return first, second


def _checked(frames: Array) -> Array:
    clip = np.asarray(frames, dtype=np.float64)
    if clip.ndim != 4 or clip.shape[-1] != 3 or not clip.size:
        raise UsageError(f"a clip of shape {clip.shape}", "frames are [F, H, W, 3]")
    if not np.isfinite(clip).all() or clip.min() < 0 or clip.max() > 1:
        raise UsageError("a clip with values outside [0, 1]", "give raw frames in [0, 1]")
    return clip


def means(rows: list[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over clips. A mean PSNR is infinite as soon as one clip is equal."""
    return {name: float(np.mean([row[name] for row in rows])) for name in (rows[0] if rows else {})}
