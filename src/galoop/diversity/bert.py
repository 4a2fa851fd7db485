"""The forward pass of BERT in NumPy: sentence embeddings without loading a deep-learning library.

Source: Devlin et al., BERT, NAACL 2019; names of weights as in transformers' ``BertModel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Bert:
    """An encoder; only what all-MiniLM-L6-v2 uses: absolute positions, exact GELU, one segment.

    Parameters
    ----------
    config : mapping
        ``config.json``: ``num_hidden_layers``, ``num_attention_heads``, ``hidden_size``,
        ``layer_norm_eps``.
    weights : mapping of str to array
        Float32, by transformers' names.

    Raises
    ------
    ValueError
        The configuration asks for what is not implemented here.
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Floats]) -> None:
        kind = config.get("position_embedding_type", "absolute")
        if (config["hidden_act"], kind) != ("gelu", "absolute"):
            raise ValueError(f"BERT with {config['hidden_act']} and {kind} positions")
        self.size: int = config["hidden_size"]
        self._layers: int = config["num_hidden_layers"]
        self._heads: int = config["num_attention_heads"]
        self._epsilon: float = config["layer_norm_eps"]
        self._weights = weights

    def __call__(self, ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> Floats:
        """States of the last layer.

        Parameters
        ----------
        ids : array of shape (batch, tokens)
        mask : array of shape (batch, tokens)
            False for padding, which nothing attends to.

        Returns
        -------
        array of shape (batch, tokens, hidden_size)
        """
        w = self._weights
        states = w["embeddings.word_embeddings.weight"][ids]
        states = states + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        states = states + w["embeddings.token_type_embeddings.weight"][0]
        states = self._norm(states, "embeddings.LayerNorm")
        for number in range(self._layers):
            states = self._layer(states, mask, f"encoder.layer.{number}")
        return states

    def _layer(self, states: Floats, mask: NDArray[np.bool_], name: str) -> Floats:
        from scipy.special import erf

        seen = self._linear(self._attend(states, mask, name), f"{name}.attention.output.dense")
        states = self._norm(states + seen, f"{name}.attention.output.LayerNorm")
        inner = self._linear(states, f"{name}.intermediate.dense")
        inner *= 0.5 * (1.0 + erf(inner / np.float32(np.sqrt(2.0))))
        outer = self._linear(inner, f"{name}.output.dense")
        return self._norm(states + outer, f"{name}.output.LayerNorm")

    def _attend(self, states: Floats, mask: NDArray[np.bool_], name: str) -> Floats:
        batch, tokens, size = states.shape
        query, key, value = (
            self._linear(states, f"{name}.attention.self.{part}")
            .reshape(batch, tokens, self._heads, size // self._heads)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(size // self._heads))
        scores = np.where(mask[:, None, None, :], scores, np.float32(-1e9))
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed: Floats = (shares @ value).transpose(0, 2, 1, 3).reshape(batch, tokens, size)
        return mixed

    def _linear(self, states: Floats, name: str) -> Floats:
        found: Floats = states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return found

    def _norm(self, states: Floats, name: str) -> Floats:
        centred = states - states.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self._epsilon)
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        found: Floats = centred / spread * weight + bias
        return found
