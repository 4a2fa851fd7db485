"""Calls a language model through litellm: retries with back-off, prices, and no key anywhere."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from galoop.config import LanguageModelConfig
from galoop.errors import InfrastructureError, UsageError
from galoop.proposers.language_model.completion import Completion, ModelUnavailable
from galoop.proposers.protocol import Cost, PriceSource
from galoop.redaction import clean

_LONGEST_PAUSE = 60.0
_LONGEST_RETRY_AFTER = 300.0
#: Statuses that no further try and no other prompt would change.
_FATAL = frozenset({401, 402, 403, 404})
_TRANSIENT = frozenset({408, 409, 425, 429})
#: Not sent, or answered with an error status. Whatever else goes wrong (time is over, connection
#: lost, unreadable answer) may be charged: the server may have worked.
_NOT_CHARGED = frozenset(
    {"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror", "HTTPStatusError"}
)
#: A rough figure for answers whose usage was not reported, on the dear side.
_CHARACTERS_PER_TOKEN = 3
_REASON_CHARACTERS = 400


class LiteLLM:
    """A model that litellm knows, or an OpenAI-compatible server.

    Parameters
    ----------
    knobs : LanguageModelConfig

    Raises
    ------
    UsageError
        No model is named, a key variable is not set, or the extra ``llm`` is not installed.
    """

    def __init__(self, knobs: LanguageModelConfig) -> None:
        check_settings(knobs)
        self._knobs = knobs
        self._litellm = _load()
        self._key = _key(knobs)
        self._lost = 0

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> Completion:
        """Ask once, with further tries after failures that may pass.

        Raises
        ------
        ModelUnavailable
            No answer after all tries, or this request was refused.
        InfrastructureError
            The key, the account, the model's name or the address is wrong: nothing would help.
        """
        import tenacity

        self._lost = 0
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._knobs.retries + 1),
            wait=self._pause,
            retry=tenacity.retry_if_exception(_is_transient),
            reraise=True,
        )
        try:
            response = retrying(self._ask, messages)
        except Exception as error:  # noqa: BLE001 - litellm's tree has no common base
            reason = f"{type(error).__name__}: {clean(str(error))}"[:_REASON_CHARACTERS]
            if _status(error) in _FATAL:
                raise InfrastructureError(
                    f"language model {self._knobs.model}: {reason}",
                    "check the model's name, the address and the key in the environment; run the "
                    "same command to go on",
                ) from None
            if not _is_reply(error):
                raise InfrastructureError(
                    f"language model {self._knobs.model}: {reason}", "this is not the model's doing"
                ) from None
            raise ModelUnavailable(f"no answer: {reason}", self._lost_cost(messages)) from None
        return self._completion(messages, response)

    def _ask(self, messages: Sequence[Mapping[str, str]]) -> Any:
        knobs = self._knobs
        optional: dict[str, Any] = {
            "api_base": knobs.api_base or None,
            "api_key": self._key,
            "temperature": knobs.temperature,
        }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pydantic's, on modules that litellm loads late
                return self._litellm.completion(
                    model=knobs.model,
                    messages=[dict(m) for m in messages],
                    max_tokens=knobs.max_output_tokens,
                    timeout=knobs.timeout,
                    num_retries=0,
                    max_retries=0,  # the provider's own client: the tries are counted here
                    drop_params=True,
                    **{name: value for name, value in optional.items() if value is not None},
                )
        except Exception as error:
            if _may_be_charged(error):
                self._lost += 1
            raise

    def _pause(self, state: Any) -> float:
        """Seconds before the next try: what the server asks for, else doubling."""
        response = getattr(state.outcome.exception(), "response", None)
        headers = getattr(response, "headers", None) or {}
        try:
            return min(_LONGEST_RETRY_AFTER, max(0.0, float(headers.get("retry-after", ""))))
        except (TypeError, ValueError):
            return float(min(_LONGEST_PAUSE, self._knobs.backoff * 2 ** (state.attempt_number - 1)))

    # -- the answer and its price -----------------------------------------------------------

    def _completion(self, messages: Sequence[Mapping[str, str]], response: Any) -> Completion:
        choice = response.choices[0] if response.choices else None
        text = (choice.message.content or "") if choice is not None else ""
        finish = str(choice.finish_reason or "") if choice is not None else "no choice"
        usage = getattr(response, "usage", None)
        spent = int(getattr(usage, "prompt_tokens", 0) or 0)
        made = int(getattr(usage, "completion_tokens", 0) or 0)
        counted = bool(spent or made)
        if not counted:
            spent, made = _tokens(messages), len(text) // _CHARACTERS_PER_TOKEN
        dollars, source, prices = self._price(response, usage, spent, made, counted)
        lost = self._lost_cost(messages)
        if self._lost:
            spent, made = spent + lost.input_tokens, made + lost.output_tokens
            known = dollars is not None and lost.dollars is not None
            dollars = dollars + lost.dollars if known else None  # type: ignore[operator]
            source, prices = ("estimated" if known else "unknown"), lost.prices
        about: dict[str, Any] = {
            "model": clean(str(getattr(response, "model", "") or self._knobs.model)),
            "finish": finish,
        }
        if not counted:
            about["tokens"] = "estimated from the length: the server reported none"
        if self._lost:
            about["lost_calls"] = self._lost
        return Completion(
            clean(text),
            Cost(dollars, spent, made, source=source, prices=prices),
            finish not in ("length", "max_tokens"),
            about,
        )

    def _price(
        self, response: Any, usage: Any, spent: int, made: int, counted: bool
    ) -> tuple[float | None, PriceSource, str]:
        """Dollars of one answer: what the server says, the file's prices, litellm's table."""
        reported = getattr(usage, "cost", None)
        if isinstance(reported, int | float) and reported >= 0:
            return float(reported), "reported", ""
        own = self._own_price(spent, made)
        if own is not None:
            return own, "estimated", "experiment file"
        try:  # knows of cached and reasoning tokens
            whole = self._litellm.completion_cost(
                completion_response=response, model=self._knobs.model
            )
            if counted:
                return float(whole), "estimated", _table()
        except Exception:  # noqa: BLE001 - a model that the table does not hold, or a part of it
            pass
        return self._table_price(spent, made)

    def _own_price(self, spent: int, made: int) -> float | None:
        each = (self._knobs.input_price, self._knobs.output_price)
        if each == (None, None):
            return None
        return (spent * (each[0] or 0.0) + made * (each[1] or 0.0)) / 1e6

    def _table_price(self, spent: int, made: int) -> tuple[float | None, PriceSource, str]:
        try:
            parts = self._litellm.cost_per_token(
                model=self._knobs.model, prompt_tokens=spent, completion_tokens=made
            )
        except Exception:  # noqa: BLE001 - as above
            return None, "unknown", ""
        return float(sum(parts)), "estimated", _table()

    def _lost_cost(self, messages: Sequence[Mapping[str, str]]) -> Cost:
        """What calls without an answer may have cost at most: caps must hold for them too."""
        if not self._lost:
            return Cost()
        spent = self._lost * _tokens(messages)
        made = self._lost * self._knobs.max_output_tokens
        own = self._own_price(spent, made)
        if own is not None:
            return Cost(own, spent, made, source="estimated", prices="experiment file")
        dollars, source, prices = self._table_price(spent, made)
        return Cost(dollars, spent, made, source=source, prices=prices)


def check_settings(knobs: LanguageModelConfig) -> None:
    """Refuse settings with which no call could succeed; nothing is imported for it.

    Raises
    ------
    UsageError
    """
    if not knobs.model:
        raise UsageError(
            "language_model.model is empty",
            "name a model as litellm does: --language-model.model openai/gpt-5-mini",
        )
    if knobs.key_variable and not os.environ.get(knobs.key_variable, "").strip():
        raise UsageError(
            f"language_model.key_variable: {knobs.key_variable} is not set in the environment",
            f"export {knobs.key_variable}=…, or name another variable",
        )
    if find_spec("litellm") is None or find_spec("tenacity") is None:
        raise UsageError(
            "the proposer language-model needs litellm and tenacity",
            "install the extra: pip install 'galoop[llm]'",
        )


def _load() -> Any:
    """litellm, quiet, and with the price table of its own release instead of a fetched one."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its messages quote requests
    return litellm


def _key(knobs: LanguageModelConfig) -> str | None:
    """The key to send; None leaves it to litellm, which knows each provider's variable."""
    if knobs.key_variable:
        return os.environ[knobs.key_variable].strip()
    # The key of one's account at OpenAI is not for every server that speaks OpenAI's protocol.
    if knobs.api_base and knobs.model.startswith(("openai/", "hosted_vllm/", "custom_openai/")):
        return "none"
    return None


def _table() -> str:
    return f"litellm {version('litellm')}"


def _tokens(messages: Sequence[Mapping[str, str]]) -> int:
    return sum(len(m["content"]) for m in messages) // _CHARACTERS_PER_TOKEN + 1


def _status(error: BaseException) -> int:
    status = getattr(error, "status_code", 0)
    return status if isinstance(status, int) else 0


def _is_reply(error: BaseException) -> bool:
    """Whether an error is the model's or the connection's, and not one of a program."""
    return _status(error) >= 400 or _is_transient(error)


def _is_transient(error: BaseException) -> bool:
    status = _status(error)
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return status in _TRANSIENT or status >= 500


def _chain(error: BaseException | None) -> set[str]:
    names: set[str] = set()
    while error is not None and len(names) < 20:
        names.add(type(error).__name__)
        error = error.__cause__ or error.__context__
    return names


def _may_be_charged(error: BaseException) -> bool:
    return _is_transient(error) and not _chain(error) & _NOT_CHARGED
