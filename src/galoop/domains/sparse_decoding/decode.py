"""Decoding on the trusted side: the model's own passes, with attention over what was chosen.

The same code answers for the reference and for artifacts; where no choice is asked for, a row
attends to all it sees. Every answer is computed alone, question in one pass and then a token at a
time, so that it depends on nothing that shares the machine with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from galoop.domains.text.decoding.stopping import ended, stop_tokens
from galoop.methods.attention_function import attention_function
from galoop.methods.selection import attend

if TYPE_CHECKING:
    import torch

    from galoop.domains.text.decoding.capture import Prefill

ATTENTION = "galoop_sparse_decoding"

#: Chooses for new rows: (layer, queries (H, R, D), keys and values (J, m, D) of all tokens after
#: the context, those of the rows last) -> bool, (H, R, L).
Chooser = Callable[[int, "torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class Answered:
    """An answer.

    Attributes
    ----------
    tokens : list of int
        A stop token included where it was generated.
    agreement : float or None
        How far the answer agrees with the draft: of its tokens the share that the answer begins
        with, and for the first other one the reciprocal of its rank. 1 where it says the draft.
    """

    tokens: list[int]
    agreement: float | None


class Decoder:
    """Greedy decoding on one model, one answer at a time.

    Parameters
    ----------
    model : PreTrainedModel
        In evaluation mode.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._stop = stop_tokens(model)

    def answer(
        self,
        captured: Prefill,
        question_ids: Sequence[int],
        max_new_tokens: int,
        *,
        draft: Sequence[int] = (),
        chooser: Chooser | None = None,
        sparse_question: bool = True,
    ) -> Answered:
        """Answer one question about one captured context.

        Parameters
        ----------
        captured : Prefill
        question_ids : sequence of int
            At least one.
        max_new_tokens : int
        draft : sequence of int
            Of which the agreement is measured; it changes no answer.
        chooser : callable, optional
            None: attention is dense.
        sparse_question : bool
            Whether the rows of the question are the chooser's too, or the answer's alone.
        """
        import torch

        draft = list(draft)[: max_new_tokens - 1]
        text = _Text(captured, len(question_ids) + max_new_tokens)
        question = chooser if sparse_question else None
        tokens: list[int] = []
        agrees, agreeing = 0.0, True
        with torch.inference_mode(), _sparse(self._model):
            logits = self._pass(text, 0, question_ids, question)
            while True:
                tokens.append(int(logits.argmax()))
                at = len(tokens) - 1
                if agreeing and at < len(draft):
                    agreeing = tokens[at] == draft[at]
                    agrees += 1.0 if agreeing else 1.0 / _rank(logits, draft[at])
                if ended(tokens, max_new_tokens, self._stop):
                    break
                logits = self._pass(text, len(question_ids) + at, tokens[-1:], chooser)
        return Answered(tokens, agrees / len(draft) if draft else None)

    def _pass(
        self, text: _Text, first: int, ids: Sequence[int], chooser: Chooser | None
    ) -> torch.Tensor:
        """Feed tokens that stand ``first`` after the context; logits after the last one."""
        import torch

        text.first, text.chooser = first, chooser
        device = self._model.device
        position = text.context + first
        hidden = self._model.model(
            input_ids=torch.tensor([list(ids)], device=device),
            position_ids=torch.arange(position, position + len(ids), device=device)[None],
            use_cache=False,
            galoop_text=text,
        ).last_hidden_state
        logits: torch.Tensor = self._model.lm_head(hidden[:, -1:])[0, 0]
        return logits


def _rank(logits: torch.Tensor, token: int) -> int:
    """Place of a token that is not the first, from 2."""
    return max(2, 1 + int((logits > logits[token]).sum()))


class _Text:
    """The keys and values of a text as it grows; shared with nobody.

    Parameters
    ----------
    captured : Prefill
    room : int
        Tokens that may come after the context.
    """

    def __init__(self, captured: Prefill, room: int) -> None:
        self.context = captured.length
        self.first = 0
        self.chooser: Chooser | None = None
        layers, heads, _, dim = captured.keys.shape
        self._keys = captured.keys.new_empty(layers, heads, self.context + room, dim)
        self._values = captured.values.new_empty(layers, heads, self.context + room, dim)
        self._keys[:, :, : self.context] = captured.keys
        self._values[:, :, : self.context] = captured.values

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Store the new rows of a layer and let them attend; (1, H, R, D) -> (1, R, H, D)."""
        import torch

        start = self.context + self.first
        stop = start + query.shape[2]
        self._keys[layer, :, start:stop] = key[0]
        self._values[layer, :, start:stop] = value[0]
        if self.chooser is not None:
            new = slice(self.context, stop)
            keys, values = self._keys[layer, :, new], self._values[layer, :, new]
            allowed = self.chooser(layer, query[0], keys, values)
        else:
            at = torch.arange(stop, device=query.device)
            allowed = (at <= at[start:, None])[None]
        keys, values = self._keys[layer, None, :, :stop], self._values[layer, None, :, :stop]
        return attend(query, keys, values, allowed[None], scaling)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    galoop_text: _Text | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention function."""
    assert galoop_text is not None
    return galoop_text.attend(module.layer_idx, query, key, value, scaling), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """No mask: what a row attends to is said in :func:`_attend`."""


@contextmanager
def _sparse(model: Any) -> Iterator[None]:
    with attention_function(model, ATTENTION, _attend, _no_mask):
        yield
