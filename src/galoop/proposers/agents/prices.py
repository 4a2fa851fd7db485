"""What a session's tokens cost, for agents that report tokens and no dollars."""

from __future__ import annotations

import importlib.metadata
import os

from galoop.config import AgentConfig
from galoop.proposers.protocol import Cost


def estimate(knobs: AgentConfig, input_tokens: int, output_tokens: int) -> Cost:
    """Dollars by the experiment file's prices, else by litellm's table, else unknown.

    Cached input counts in full, so that an estimate is rather too high than too low.
    """
    own = (knobs.input_price, knobs.output_price)
    if not input_tokens and not output_tokens:
        return Cost(None)
    if own != (None, None):
        dollars = (input_tokens * (own[0] or 0.0) + output_tokens * (own[1] or 0.0)) / 1e6
        return Cost(dollars, source="estimated", prices="experiment file")
    if not knobs.model:
        return Cost(None)
    # The table of the installed release, not one that is fetched.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm

        parts = litellm.cost_per_token(
            model=knobs.model, prompt_tokens=input_tokens, completion_tokens=output_tokens
        )
        version = importlib.metadata.version("litellm")
    except Exception:  # noqa: BLE001 - not installed, or a model that its table does not hold
        return Cost(None)
    return Cost(float(sum(parts)), source="estimated", prices=f"litellm {version}")
