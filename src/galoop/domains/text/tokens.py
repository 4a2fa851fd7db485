"""Counting tokens as the model counts them, with the ``tokenizers`` library alone.

Importing transformers or torch would make the start of a probe's process slow, and neither is
needed: ``tokenizer.json`` says it all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from galoop.errors import ModelError


class TokenCounter:
    """Token counts and special tokens of one tokenizer.

    Parameters
    ----------
    tokenizer_dir : Path
        A model folder with ``tokenizer.json`` and, usually, ``tokenizer_config.json``.

    Raises
    ------
    ModelError
        When the folder has no readable ``tokenizer.json``.
    """

    def __init__(self, tokenizer_dir: Path) -> None:
        from tokenizers import Tokenizer

        path = Path(tokenizer_dir) / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            self._tokenizer = Tokenizer.from_str(text)
            description = json.loads(text)
        except Exception as error:
            # tokenizers raises bare Exception for whatever it cannot read.
            raise ModelError(
                f"cannot read the tokenizer {path}: {error}",
                "give a model folder that holds a fast tokenizer (tokenizer.json)",
            ) from error
        # A tokenizer may have been saved with the truncation or padding of its training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added: list[dict[str, Any]] = description.get("added_tokens") or []
        unknown = _unknown_token(description)
        self.unknown_id: int | None = (
            None if unknown is None else self._tokenizer.token_to_id(unknown)
        )
        self._special_ids = {
            entry["id"]: entry["content"]
            for entry in added
            if entry.get("special") and entry["content"].strip()
        }
        self.special_tokens: tuple[str, ...] = _special_strings(Path(tokenizer_dir), added)

    def ids(self, text: str) -> list[int]:
        """Token ids of ``text`` alone: nothing is added in front or behind."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def count(self, text: str) -> int:
        """Number of tokens of ``text``, without added special tokens."""
        return len(self.ids(text))

    def __call__(self, text: str) -> int:
        """Same as :meth:`count`."""
        return self.count(text)

    def special_in(self, text: str, ids: Sequence[int]) -> str | None:
        """Return a special token that ``text`` (with token ids ``ids``) spells out, or None.

        Such text becomes a real control token when it is tokenized, and so could end the user's
        turn or begin another one. Both the spelling and the ids are looked at, because a
        tokenizer may normalise the text before it looks for special tokens.
        """
        for token in self.special_tokens:
            if token in text:
                return token
        for identity in ids:
            if identity in self._special_ids and identity != self.unknown_id:
                return self._special_ids[identity]
        return None


def _unknown_token(description: dict[str, Any]) -> str | None:
    model = description.get("model") or {}
    token = model.get("unk_token")
    if token is None and model.get("unk_id") is not None:  # Unigram keeps an index instead
        token = model["vocab"][model["unk_id"]][0]
    return token if isinstance(token, str) else None


def _special_strings(folder: Path, added: list[dict[str, Any]]) -> tuple[str, ...]:
    """Every spelling that means a control token to this model, longest first."""
    config: dict[str, Any] = {}
    config_path = folder / "tokenizer_config.json"
    if config_path.is_file():
        config = json.loads(config_path.read_text(encoding="utf-8"))
    template = str(config.get("chat_template") or "")
    template_path = folder / "chat_template.jinja"
    if template_path.is_file():
        template += template_path.read_text(encoding="utf-8")
    found: list[Any] = [
        entry["content"] for entry in added if entry.get("special") or entry["content"] in template
    ]
    found += [value for name, value in config.items() if name.endswith("_token")]
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    found += list(extra.values() if isinstance(extra, dict) else extra)
    spellings = {item["content"] if isinstance(item, dict) else item for item in found}
    # Some tokenizers add runs of spaces as tokens: those are text, not control.
    strings = [item for item in spellings if isinstance(item, str) and item.strip()]
    return tuple(sorted(strings, key=lambda item: (-len(item), item)))
