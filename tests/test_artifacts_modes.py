"""Which presses are replayed, which need their own prefill, which run the pipeline."""

from __future__ import annotations

import pytest
from kvpress import (
    AdaKVPress,
    BasePress,
    BlockPress,
    ChunkPress,
    CompactorPress,
    ComposedPress,
    CriticalKVPress,
    DecodingPress,
    DMSPress,
    FinchPress,
    KeyDiffPress,
    KeyRerotationPress,
    KnormPress,
    KVComposePress,
    KVzipPress,
    ObservedAttentionPress,
    PerLayerCompressionPress,
    PrefillDecodingPress,
    RestoreKVPress,
    SnapKVPress,
    ThinKPress,
)

from galoop.domains.kv_compression.artifacts import load_press, materialise
from galoop.domains.kv_compression.replay_modes import execution_mode, needs_attentions


class Plain(KnormPress):
    def score(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        return super().score(*args, **kwargs)


class Hooked(KnormPress):
    def forward_hook(self, module, input, kwargs, output):  # type: ignore[no-untyped-def]
        return output


class Called(KnormPress):
    def __call__(self, model):  # type: ignore[no-untyped-def]
        return super().__call__(model)


class CalledAndHooked(Hooked, Called):
    pass


class KVzipPressToo(BasePress):
    def __call__(self, model):  # type: ignore[no-untyped-def]
        return super().__call__(model)

    def forward_hook(self, module, input, kwargs, output):  # type: ignore[no-untyped-def]
        return output


class Holder(KnormPress):
    pass


def patched() -> BasePress:
    press = KnormPress(0.5)
    press.forward_hook = lambda *a: None  # type: ignore[method-assign]
    return press


def holder(inner: object) -> BasePress:
    press = Holder(0.5)
    press.parts = {"a": [inner]}  # type: ignore[attr-defined]
    return press


CASES = [
    (CompactorPress(), "replay"),
    (ThinKPress(0.5), "replay"),
    (AdaKVPress(SnapKVPress()), "replay"),
    (BlockPress(KeyDiffPress()), "replay"),
    (ChunkPress(KnormPress()), "replay"),
    (CriticalKVPress(KnormPress()), "replay"),
    (ComposedPress([KnormPress(0.3), SnapKVPress(0.3)]), "replay"),
    (PerLayerCompressionPress(KnormPress(), [0.1, 0.2]), "replay"),
    (DMSPress(KnormPress(), threshold=0.5), "replay"),
    (DMSPress(KnormPress(), threshold=0.5, decoding=True), "pipeline"),
    (KVzipPress(0.5), "prefill"),
    (KVComposePress(0.5), "prefill"),
    (ObservedAttentionPress(0.5), "prefill"),
    (ComposedPress([KnormPress(0.3), ObservedAttentionPress(0.3)]), "prefill"),
    (AdaKVPress(ObservedAttentionPress(0.3)), "prefill"),
    (RestoreKVPress(0.5), "pipeline"),
    (FinchPress(0.5), "pipeline"),
    (KeyRerotationPress(KnormPress(0.5)), "pipeline"),
    (ComposedPress([KeyRerotationPress(KnormPress(0.5))]), "pipeline"),
    (DecodingPress(KnormPress()), "pipeline"),
    (PrefillDecodingPress(KnormPress(0.5), None), "pipeline"),
    (Plain(0.5), "replay"),
    (Called(0.5), "prefill"),
    (Hooked(0.5), "pipeline"),
    (CalledAndHooked(0.5), "pipeline"),
    (KVzipPressToo(), "pipeline"),
    (AdaKVPress(Hooked(0.5)), "pipeline"),
    (patched(), "pipeline"),
    (holder(KnormPress(0.5)), "replay"),
    (holder(KVzipPress(0.5)), "prefill"),
    (holder(Hooked(0.5)), "pipeline"),
]


@pytest.mark.parametrize(
    ("press", "mode"), CASES, ids=[f"{i}-{type(p).__name__}" for i, (p, _) in enumerate(CASES)]
)
def test_mode(press: BasePress, mode: str) -> None:
    assert execution_mode(press) == mode


def test_attention_weights_are_asked_for_only_where_read() -> None:
    assert needs_attentions(AdaKVPress(ObservedAttentionPress(0.5)))
    assert not needs_attentions(AdaKVPress(SnapKVPress(0.5)))


def test_materialised_copies_of_replayed_presses_are_replayed() -> None:
    for name in ("compactor", "keydiff", "snapkv", "adakv-compactor", "identity"):
        press, spec = load_press(materialise(name, {"compression_ratio": 0.75}).files)
        assert (spec.mode, execution_mode(press)) == ("auto", "replay")
    for name in ("kvzip", "fastkvzip"):
        assert load_press(materialise(name, {"compression_ratio": 0.75}).files)[1].mode == "prefill"
