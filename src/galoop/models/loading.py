"""From a resolved model to torch modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from galoop.errors import ModelError
from galoop.models.info import ModelInfo
from galoop.models.quiet import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load(
    info: ModelInfo, *, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and its tokenizer, without touching the network.

    The model is in evaluation mode, uses scaled dot-product attention, and its weights take no
    gradients. Weights and tokenizer come from ``info.path`` in ``info.dtype``.

    Raises
    ------
    ModelError
        The folder cannot be loaded as a causal language model, or the device is not there.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {
        "dtype": getattr(torch, info.dtype),
        "attn_implementation": "sdpa",
        "local_files_only": True,
    }
    with quiet():
        tokenizer = load_tokenizer(info)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(info.path, **options)
            model = model.to(torch.device(device))
        except (
            OSError,
            ValueError,
            KeyError,
            RuntimeError,
            AssertionError,
            SafetensorError,
        ) as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(
                f"{info.name} cannot be loaded from {info.path}: {words[0]}"
            ) from error
    if info.reference:
        model.config.name_or_path = info.reference
    model.eval()
    model.requires_grad_(False)
    return model, tokenizer


def load_tokenizer(info: ModelInfo) -> PreTrainedTokenizerBase:
    """The tokenizer alone.

    Raises
    ------
    ModelError
        The folder's tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    with quiet():
        try:
            return AutoTokenizer.from_pretrained(info.path, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(
                f"the tokenizer of {info.name} cannot be loaded from {info.path}: {words[0]}"
            ) from error
