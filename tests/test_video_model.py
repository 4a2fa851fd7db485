"""The small video model, its samplers and its training script."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers", reason="needs the extra `video` (pip install galoop[video])")

from galoop.domains.sparse_video.model import (
    VideoModel,
    VideoModelConfig,
    build_video_model,
    load_video_model,
    save_video_model,
)
from galoop.domains.sparse_video.prompts import MOST_WORDS, ordinary_prompts, vocabulary
from galoop.domains.sparse_video.sampling import (
    PipelineSampler,
    SmallSampler,
    load_pipeline,
    noise,
    sample_with,
)
from galoop.domains.sparse_video.text_encoder import encode_words
from galoop.errors import ModelError, UsageError
from galoop.methods.svg import SVG, Schedule

TINY = VideoModelConfig(heads=1, head_dim=12, layers=1, ffn=16, text_width=16, text_layers=1)
PROMPTS = ordinary_prompts(3, 0)
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def model() -> VideoModel:
    return build_video_model(TINY, seed=1).eval()


def test_the_default_model_has_enough_tokens_and_few_enough_bytes() -> None:
    assert VideoModelConfig().patch == 2
    model = build_video_model(VideoModelConfig())
    assert model.tokens == 1152
    assert model.parameters * 4 <= 25 * 2**20


def test_building_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = build_video_model(TINY, 3), build_video_model(TINY, 3)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first.transformer.parameters(), second.transformer.parameters(), strict=True):
        assert torch.equal(a, b)


def test_words() -> None:
    ids = encode_words(["a red circle resting on a gray background", ""])
    assert ids.shape == (2, MOST_WORDS)
    words = [vocabulary()[i - 1] for i in ids[0].tolist() if i]
    assert words == ["a", "red", "circle", "resting", "on", "a", "gray", "background"]
    assert not ids[1].any()
    with pytest.raises(UsageError, match="does not know 'purple'"):
        encode_words(["a purple circle"])
    with pytest.raises(UsageError, match="37 words"):
        encode_words(["red " * 37])


def test_a_saved_model_comes_back(model: VideoModel, tmp_path: Path) -> None:
    weights = save_video_model(model, tmp_path)
    again = load_video_model(tmp_path)
    first, second = (SmallSampler(m, steps=2).sample(PROMPTS[:1], [5]) for m in (model, again))
    assert np.array_equal(first[0], second[0])
    weights.write_bytes(save_video_model(build_video_model(
        VideoModelConfig(heads=2, head_dim=12, layers=1, ffn=16, text_width=16, text_layers=1)
    ), tmp_path / "other").read_bytes())  # fmt: skip
    with pytest.raises(ModelError, match="does not fit"):
        load_video_model(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**facts, "words": ["red"]}))
    with pytest.raises(ModelError, match="another language"):
        load_video_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_video_model(tmp_path)
    with pytest.raises(ModelError, match=r"config\.json and model\.safetensors missing"):
        load_video_model(tmp_path / "nothing")


def test_noise_is_a_clips_own() -> None:
    both = noise((3, 2, 4, 4), [7, 8])
    assert torch.equal(noise((3, 2, 4, 4), [8])[0], both[1])
    assert not torch.equal(both[0], both[1])
    assert torch.equal(both[0], torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(7)))


def test_sampling_is_deterministic_whatever_the_batch(model: VideoModel) -> None:
    sampler = SmallSampler(model, steps=3, batch=2)
    state = torch.get_rng_state()
    clips = sampler.sample(PROMPTS, [1, 2, 3])
    assert torch.equal(torch.get_rng_state(), state)
    for clip in clips:
        assert clip.shape == (8, 24, 24, 3)
        assert clip.dtype == np.float32
        assert 0 <= clip.min() <= clip.max() <= 1
    alone = sampler.sample(PROMPTS[2:], [3])
    np.testing.assert_allclose(alone[0], clips[2], atol=1e-5)
    assert np.array_equal(sampler.sample(PROMPTS, [1, 2, 3])[1], clips[1])
    assert not np.allclose(clips[0], sampler.sample(PROMPTS[:1], [9])[0])
    with pytest.raises(UsageError, match="3 prompts and 1 seeds"):
        sampler.sample(PROMPTS, [1])


def test_euler_steps_of_a_known_flow() -> None:
    """For the velocity ε − x₀ of one target x₀, straight steps end exactly at x₀."""
    target = torch.linspace(-0.8, 0.8, 3 * 8 * 24 * 24).view(1, 3, 8, 24, 24)
    start = noise((3, 8, 24, 24), [4])

    class Known:
        def encode(self, prompts: list[str]) -> torch.Tensor:
            return torch.zeros(len(prompts), 1, 1)

        def velocity(self, sample: Any, time: Any, words: Any) -> torch.Tensor:
            sigma = time.view(-1, 1, 1, 1, 1) / 1000
            torch.testing.assert_close(
                sample, (1 - sigma) * target + sigma * start, atol=1e-4, rtol=1e-4
            )
            return start - target

    clip = SmallSampler(Known(), steps=7).sample(["x"], [4])[0]  # type: ignore[arg-type]
    wanted = ((target[0] + 1) / 2).permute(1, 2, 3, 0).numpy()
    np.testing.assert_allclose(clip, wanted, atol=1e-5)


def test_guidance_mixes_two_velocities() -> None:
    class Counts:
        calls = 0

        def encode(self, prompts: list[str]) -> torch.Tensor:
            return torch.full((len(prompts), 1, 1), float(bool(prompts[0])))

        def velocity(self, sample: Any, time: Any, words: Any) -> torch.Tensor:
            self.calls += 1
            return torch.zeros_like(sample) + words.mean()

    counts = Counts()
    start = noise((3, 8, 24, 24), [4])[0].permute(1, 2, 3, 0).numpy()
    guided = SmallSampler(counts, steps=1, guidance=0.5)  # type: ignore[arg-type]
    clip = guided.sample(["x"], [4])[0]
    assert counts.calls == 2  # v(∅) = 0, v(prompt) = 1, one step of length 1
    np.testing.assert_allclose(clip, np.clip((start - 0.5 + 1) / 2, 0, 1), atol=1e-5)
    SmallSampler(counts, steps=1, guidance=1.0).sample(["x"], [4])  # type: ignore[arg-type]
    assert counts.calls == 3


def test_sparse_and_dense_start_from_the_same_noise(model: VideoModel) -> None:
    sampler = SmallSampler(model, steps=2)
    dense = sample_with(sampler, None, PROMPTS[:2], [1, 2])
    assert dense.measured == {}
    full = sample_with(sampler, SVG(1.0, Schedule()), PROMPTS[:2], [1, 2])
    assert full.measured["density"] == 1.0
    for a, b in zip(dense.frames, full.frames, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    sparse = sample_with(sampler, SVG(0.1, Schedule(), granularity=1, sink_frames=0), PROMPTS[:2],
                         [1, 2])  # fmt: skip
    assert sparse.measured["density"] == pytest.approx(0.1, abs=0.003)
    assert not np.array_equal(sparse.frames[0], dense.frames[0])
    again = sample_with(sampler, None, PROMPTS[:2], [1, 2])
    assert np.array_equal(again.frames[0], dense.frames[0])


@pytest.fixture(scope="module")
def pipeline_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``WanPipeline`` with every part real and tiny, saved as the hub has it."""
    from diffusers import (
        AutoencoderKLWan,
        FlowMatchEulerDiscreteScheduler,
        WanPipeline,
        WanTransformer3DModel,
    )
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2, "cat": 3}, "</s>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="</s>"
    )
    torch.manual_seed(0)
    text = UMT5EncoderModel(
        UMT5Config(vocab_size=4, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )  # fmt: skip
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16,
        out_channels=16, text_dim=16, freq_dim=32, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
    pipeline = WanPipeline(
        tokenizer=tokenizer, text_encoder=text, transformer=transformer, vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("wan")
    pipeline.save_pretrained(folder)
    return folder


def test_a_wan_pipeline_from_a_folder_runs_sparse(pipeline_folder: Path) -> None:
    pipeline = load_pipeline(str(pipeline_folder), dtype="float32")
    assert type(pipeline).__name__ == "WanPipeline"
    assert pipeline.vae.dtype == torch.float32
    sampler = PipelineSampler(pipeline, steps=2, height=32, width=32, frames=9, guidance=2.0)
    dense = sample_with(sampler, None, ["a cat"], [3])
    assert dense.frames[0].shape == (9, 32, 32, 3)
    assert np.array_equal(sample_with(sampler, None, ["a cat"], [3]).frames[0], dense.frames[0])
    full = sample_with(sampler, SVG(1.0, Schedule()), ["a cat"], [3])
    np.testing.assert_allclose(full.frames[0], dense.frames[0], atol=1e-4)
    half = sample_with(sampler, SVG(0.5, Schedule(0.5), granularity=1), ["a cat"], [3])
    assert half.measured["dense_share"] == 0.5
    assert 0.5 < half.measured["density"] < 1.0


def test_other_pipelines_and_folders_are_refused(pipeline_folder: Path, tmp_path: Path) -> None:
    index = pipeline_folder / "model_index.json"
    other = json.loads(index.read_text()) | {"_class_name": "StableDiffusionPipeline"}
    (tmp_path / "model_index.json").write_text(json.dumps(other))
    with pytest.raises(UsageError, match="is a StableDiffusionPipeline"):
        load_pipeline(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no pipeline of diffusers"):
        load_pipeline(str(tmp_path / "empty"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "training"))
    yield importlib.import_module("train_video_model")
    sys.modules.pop("train_video_model", None)


SMALL = ["--steps", "4", "--batch", "2", "--heads", "1", "--head-dim", "12", "--layers", "1",
         "--ffn", "16", "--threads", "1", "--log-steps", "2", "--checkpoint-steps", "1",
         "--n", "2"]  # fmt: skip


def test_training_resumes_to_the_same_weights(script: ModuleType, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert script.main([*SMALL, "--out", str(whole), "--work", str(tmp_path / "w1")]) == 0
    arguments = [*SMALL, "--out", str(parts), "--work", str(tmp_path / "w2")]
    arguments += ["--look-steps", "2", "--look-prompts", "1"]  # which changes nothing
    for _ in range(3):  # each sitting ends after one step
        assert script.main([*arguments, "--seconds", "1e-9"]) == 0
        assert not parts.exists()
    assert script.main(arguments) == 0
    assert (tmp_path / "w2" / "look-000002.png").stat().st_size > 1000
    names = {path.name for path in whole.iterdir()}
    assert names == {"config.json", "model.safetensors", "MODEL_CARD.md", "training_log.csv"}
    for name in ("config.json", "model.safetensors", "training_log.csv"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    card = (whole / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "{{" not in card
    assert "held-out combinations | everything | 2 |" in card
    assert load_video_model(whole).config.heads == 1
    with pytest.raises(SystemExit, match="other arguments"):
        script.main([*arguments, "--seed", "1"])


def test_training_data_is_seeded_and_gets_harder(script: ModuleType) -> None:
    data = script.Clips(seed=0, steps=30, batch=4)
    (clips, prompts), again = data[3], data[3]
    assert torch.equal(clips, again[0])
    assert prompts == again[1]
    assert clips.shape == (4, 3, 8, 24, 24)
    assert clips.min() >= -1
    early = [p for i in range(10) for p in data[i][1]]
    late = [p for i in range(20, 30) for p in data[i][1]]
    assert not any("," in p or " and " in p for p in early)
    assert any("," in p for p in late)
    assert any(" and " in p for p in late)
    assert 0 < sum(not p for p in early + late) < 20  # for guidance


def test_training_learns(script: ModuleType, tmp_path: Path) -> None:
    """A few steps on one batch bring its loss down."""
    args = script.parse([*SMALL, "--steps", "400", "--work", str(tmp_path)])
    trainer = script.Trainer(args)
    clips, prompts = script.Clips(0, 400, 2)[0]
    with torch.no_grad():
        before = float(trainer.loss(clips, prompts))
    for _ in range(40):
        trainer.update(clips, prompts)
    trainer.step = 0
    with torch.no_grad():
        assert float(trainer.loss(clips, prompts)) < 0.8 * before
