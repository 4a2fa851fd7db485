"""The small text-to-video model: diffusers' own Wan transformer in pixel space, and its words.

A folder of it holds ``config.json``, ``model.safetensors`` (both parts), a card and a log. Frames
are 8 × 24 × 24 in RGB; with patches of (1, 2, 2) that is 1,152 video tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from galoop.domains.sparse_video.clips import FRAMES, HEIGHT, WIDTH
from galoop.domains.sparse_video.prompts import vocabulary
from galoop.domains.sparse_video.text_encoder import build_text_encoder, encode_words
from galoop.errors import ModelError, UsageError

if TYPE_CHECKING:
    import torch

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SHIPPED = Path(__file__).with_name("weights")
"""Where the training script writes, and where a trained model is looked for."""
FORMAT = 1


@dataclass(frozen=True)
class VideoModelConfig:
    """The sizes of the model.

    Attributes
    ----------
    heads, head_dim, layers, ffn : int
        Of the Wan transformer; its width is heads × head_dim.
    text_width, text_layers : int
        Of the text encoder.
    patch : int
        Pixels of a patch's side; patches are one frame deep.
    """

    heads: int = 4
    head_dim: int = 32
    layers: int = 6
    ffn: int = 512
    text_width: int = 128
    text_layers: int = 2
    patch: int = 2


@dataclass
class VideoModel:
    """A text-to-video model.

    Attributes
    ----------
    config : VideoModelConfig
    transformer : diffusers.WanTransformer3DModel
        Predicts the velocity ε − x₀ from x_σ = (1−σ)·x₀ + σ·ε at timestep 1000·σ.
    text : torch.nn.Module
    """

    config: VideoModelConfig
    transformer: Any
    text: Any

    def encode(self, prompts: Sequence[str]) -> torch.Tensor:
        """Prompts to [N, T, text_width]; an empty string is the empty prompt."""
        device = next(self.text.parameters()).device
        found: torch.Tensor = self.text(encode_words(prompts).to(device))
        return found

    def velocity(self, noisy: torch.Tensor, time: torch.Tensor, words: torch.Tensor) -> Any:
        """The velocity: noisy [N, 3, F, H, W], timesteps [N] in [0, 1000], words [N, T, C]."""
        return self.transformer(
            hidden_states=noisy, timestep=time, encoder_hidden_states=words, return_dict=False
        )[0]

    @property
    def tokens(self) -> int:
        """Video tokens of one clip."""
        return FRAMES * (HEIGHT // self.config.patch) * (WIDTH // self.config.patch)

    @property
    def parameters(self) -> int:
        """Parameters of both parts."""
        return sum(p.numel() for part in (self.transformer, self.text) for p in part.parameters())

    def modules(self) -> Mapping[str, Any]:
        """Both parts by name."""
        return {"transformer": self.transformer, "text": self.text}

    def eval(self) -> VideoModel:
        """Both parts in evaluation mode."""
        for part in self.modules().values():
            part.eval()
        return self


def require_diffusers() -> None:
    """Raise a clear error where the extra is missing.

    Raises
    ------
    UsageError
    """
    from importlib.util import find_spec

    if find_spec("diffusers") is None:
        raise UsageError("video generation needs diffusers", "pip install 'galoop[video]'")


def build_video_model(config: VideoModelConfig, seed: int = 0) -> VideoModel:
    """A model with fresh weights; torch's global generator is left as it was.

    Parameters
    ----------
    config : VideoModelConfig
    seed : int
        Of the weights.
    """
    require_diffusers()
    import torch
    from diffusers import WanTransformer3DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = WanTransformer3DModel(
            patch_size=(1, config.patch, config.patch),
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=3,
            out_channels=3,
            text_dim=config.text_width,
            freq_dim=128,
            ffn_dim=config.ffn,
            num_layers=config.layers,
            rope_max_seq_len=32,
        )
        text = build_text_encoder(config.text_width, config.text_layers)
    return VideoModel(config, transformer, text)


def save_video_model(model: VideoModel, folder: Path, dtype: str = "float32") -> Path:
    """Write configuration and weights; returns the path of the weights."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{name}.{key}": value.detach().to("cpu", getattr(torch, dtype)).contiguous()
        for name, part in model.modules().items()
        for key, value in part.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    facts = {"format": FORMAT, "words": list(vocabulary()), "model": asdict(model.config)}
    text = json.dumps(facts, indent=1, sort_keys=True) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    return folder / WEIGHTS


def load_video_model(folder: Path = SHIPPED, device: str = "cpu") -> VideoModel:
    """Read a model that :func:`save_video_model` wrote, in float32 and evaluation mode.

    Raises
    ------
    ModelError
        The folder holds no such model, or one of another language or size.
    """
    from safetensors.torch import load_file

    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} holds no video model: {' and '.join(missing)} missing",
            "train one with training/train_video_model.py",
        )
    try:
        facts = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config = VideoModelConfig(**facts["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {error}") from None
    if facts.get("format") != FORMAT or facts.get("words") != list(vocabulary()):
        raise ModelError(f"{folder} was trained on another language or format", "train it again")
    model = build_video_model(config)
    tensors = load_file(folder / WEIGHTS)
    for name, part in model.modules().items():
        own = {
            k.removeprefix(name + "."): v for k, v in tensors.items() if k.startswith(name + ".")
        }
        try:
            part.load_state_dict(own)
        except RuntimeError as error:
            raise ModelError(
                f"{folder / WEIGHTS} does not fit its {CONFIG}: {str(error)[:300]}"
            ) from None
        part.to(device)
    return model.eval()
