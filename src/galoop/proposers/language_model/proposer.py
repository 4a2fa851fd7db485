"""A language model in the proposer's seat."""

from __future__ import annotations

import time
from dataclasses import replace

from galoop.errors import GaloopError
from galoop.proposers.language_model.client import LiteLLM
from galoop.proposers.language_model.completion import Complete, Completion, ModelUnavailable
from galoop.proposers.language_model.prompts import messages
from galoop.proposers.language_model.replies import ReplyError, read
from galoop.proposers.protocol import Cost, Proposal, Request, Seat
from galoop.redaction import clean
from galoop.store.files import disk_errors

_REASON_CHARACTERS = 400


class LanguageModelProposer:
    """Asks a language model for each candidate.

    Parameters
    ----------
    seat : Seat
        Its table ``[language_model]`` names the model and bounds prompts and answers.
    complete : callable, optional
        Chat messages -> text or :class:`galoop.proposers.language_model.Completion`, in the place
        of litellm. What it raises counts as an answer without a candidate.

    Raises
    ------
    UsageError
        Without ``complete``: no model is named, its key variable is not set, or litellm is not
        installed.
    """

    name = "language-model"
    replayable = False

    def __init__(self, seat: Seat, complete: Complete | None = None) -> None:
        self._seat = seat
        self._knobs = seat.config.language_model
        self._complete: Complete = complete or LiteLLM(self._knobs)

    def propose(self, request: Request) -> Proposal:
        """One call, read; an answer that cannot be read is a proposal without a candidate.

        Raises
        ------
        InfrastructureError
            When no further call could succeed (a wrong key, an unknown model).
        """
        began = time.monotonic()
        asked = messages(request, self._knobs)
        self._keep(request, "prompt", asked[-1]["content"])
        try:
            answer = self._complete(asked)
        except ModelUnavailable as error:
            cost = replace(error.cost, seconds=time.monotonic() - began)
            return Proposal(None, cost, error.reason)
        except GaloopError:
            raise
        except Exception as error:  # noqa: BLE001 - a callable of the user's
            reason = f"no answer: {type(error).__name__}: {clean(str(error))}"
            seconds = time.monotonic() - began
            return Proposal(None, Cost(None, seconds=seconds), reason[:_REASON_CHARACTERS])
        made = Completion(clean(answer)) if isinstance(answer, str) else answer
        cost = replace(made.cost, seconds=time.monotonic() - began)
        text = clean(made.text)
        self._keep(request, "answer", text)
        try:
            candidate = read(text, request, finished=made.finished)
        except ReplyError as error:
            return Proposal(None, cost, str(error), made.about)
        return Proposal(candidate, cost, "", made.about)

    def _keep(self, request: Request, what: str, text: str) -> None:
        """Write a prompt or an answer into the seat's folder, for people."""
        name = f"{request.index:04d}.{len(request.rejected)}-{what}.md"
        with disk_errors(f"write {name}"):
            (self._seat.directory() / name).write_text(clean(text), encoding="utf-8")
