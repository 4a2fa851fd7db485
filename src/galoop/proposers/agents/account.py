"""What the agents of a run did, in sentences for its report."""

from __future__ import annotations

import json
from typing import Any

from galoop.proposers.agents.session import FACTS
from galoop.redaction import clean
from galoop.store.run import RunStore

_WORDS = 200


def sentences(store: RunStore) -> tuple[str, ...]:
    """One for each agent session that handed something in, in the order of the log.

    How it was held, how it ended, how much was evaluated and refused, whether it changed its
    evaluation command, and what it said at last, which is quoted and counts nothing.

    Parameters
    ----------
    store : RunStore
        Of the run, with the folders of its sessions.
    """
    sessions: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in store.events("proposal"):
        made = event["payload"]
        session = made["about"].get("session")
        if made["who"].startswith("agent:") and session:
            sessions.setdefault((made["stage"], session), []).append(made)
    found = []
    for (stage, session), proposals in sessions.items():
        try:
            text = (store.folder(stage) / session / FACTS).read_text(encoding="utf-8")
            found.append(_sentence(stage, session, proposals, json.loads(text)))
        except (OSError, ValueError, KeyError):
            continue  # somebody removed it; the log of proposals stands
    return tuple(found)


def _sentence(
    stage: str, session: str, proposals: list[dict[str, Any]], facts: dict[str, Any]
) -> str:
    handed_in = sum(bool(p["key"]) for p in proposals)
    # An agent that ended with nothing new in its tree was not turned away.
    refused = sum(
        not p["key"] and ("status" not in p["about"] or p["about"].get("refused", False))
        for p in proposals
    )
    held = (
        "in a sandbox, in which the frozen set, the store and the evaluator do not exist"
        if facts["sandboxed"]
        else "NOT in a sandbox: it could read what you can"
    )
    parts = [
        f"{stage.replace('-', ' ').replace('/', ', ')}, {session}: {facts['adapter']}, {held}; "
        f"{facts.get('reason', 'it did not end')}; {handed_in} handed in, {refused} refused."
    ]
    if facts.get("tools_changed"):
        parts.append("It changed its evaluation command, which fools the agent alone.")
    said = " ".join(clean(str(facts.get("text", ""))).split())[:_WORDS]
    if said:
        parts.append(f"Its last words, which count nothing: “{said}”")
    return " ".join(parts)
