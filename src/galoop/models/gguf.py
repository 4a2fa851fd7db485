"""GGUF files to folders of safetensors, once.

``transformers`` reads llama.cpp's GGUF by dequantising every tensor. That takes seconds, needs the
``gguf`` package, and leaves a model whose ``config.name_or_path`` no Auto class can resolve (KVzip
asks for that); a folder of safetensors has none of these troubles.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import lru_cache
from pathlib import Path
from typing import Any

from galoop.errors import ModelError
from galoop.models.quiet import quiet

_EXACT_TYPES = frozenset({"F32", "F16", "F64"})


def stored_dtype(gguf_file: Path) -> str:
    """The dtype in which a GGUF's weights are saved.

    ``"bfloat16"`` when all its matrices are quantised (or bfloat16 themselves): a quantised value
    carries fewer than bfloat16's 8 bits of precision beside its block's scale, and half the disk
    space is saved. ``"float32"`` when a matrix is stored as such or in half precision, so that
    nothing is lost.

    Raises
    ------
    ModelError
        Not a GGUF file.
    """
    import gguf

    try:
        tensors = gguf.GGUFReader(str(gguf_file)).tensors
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise ModelError(f"{gguf_file} is not a readable GGUF file: {error}") from error
    matrices = {t.tensor_type.name for t in tensors if sum(int(n) > 1 for n in t.shape) >= 2}
    return "float32" if matrices & _EXACT_TYPES else "bfloat16"


def convert(gguf_file: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder.

    Parameters
    ----------
    gguf_file : Path
    folder : Path
        An existing folder; gets ``config.json``, ``model.safetensors`` and the tokenizer's files.

    Raises
    ------
    ModelError
        Not a GGUF file, or an architecture that transformers cannot read from one.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf_file.parent),
        "gguf_file": gguf_file.name,
    }
    # The dequantising loop shows its own progress bar, which no setting turns off.
    with quiet(), redirect_stderr(io.StringIO()), _parsed_once():
        dtype = getattr(torch, stored_dtype(gguf_file))
        try:
            tokenizer = AutoTokenizer.from_pretrained(**source)
            model = AutoModelForCausalLM.from_pretrained(**source, dtype=dtype)
        except (ValueError, KeyError, NotImplementedError, RuntimeError, ImportError) as error:
            raise ModelError(
                f"{gguf_file} cannot be converted: {error}",
                "transformers reads GGUF files of the architectures that its documentation lists",
            ) from error
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Remember what the ``gguf`` package parses, for as long as a conversion lasts.

    transformers opens the file anew for tokenizer, configuration and weights, and builds the map of
    tensor names once a submodule; both are functions of their arguments alone. Remembering them
    makes the conversion of SmolLM2-135M several times faster.
    """
    import gguf

    originals: dict[str, Any] = {
        name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")
    }
    for name, original in originals.items():
        setattr(gguf, name, lru_cache(maxsize=2)(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)
