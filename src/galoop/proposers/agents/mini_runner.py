"""Runs mini-swe-agent in the current folder; copied beside the worktree and started there.

Reads the session as JSON from standard input and reports running totals as JSON lines.
``--class`` and ``--kwargs`` choose another model class of mini-swe-agent than the litellm one.
"""

import argparse
import importlib
import json
import sys
from typing import Any


def report(kind: str, **figures: Any) -> None:
    """One line for the trusted side."""
    sys.stdout.write(json.dumps({"type": kind, **figures}) + "\n")
    sys.stdout.flush()


def make_model(session: dict[str, Any], name: str, kwargs: str, settings: dict[str, Any]) -> Any:
    """The model that the session asks for."""
    module, _, cls = name.rpartition(".")
    more = json.loads(kwargs)
    if session["model"]:
        more = {**settings, "model_name": session["model"], **more}
    return getattr(importlib.import_module(module), cls)(**more)


def make_agent(session: dict[str, Any], name: str, kwargs: str) -> Any:
    """The agent, with the settings that mini-swe-agent brings along."""
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir
    from minisweagent.environments.local import LocalEnvironment

    class Agent(DefaultAgent):
        """Says after each call of the model what it cost so far."""

        tokens = (0, 0)

        def query(self) -> dict[str, Any]:
            message: dict[str, Any] = super().query()
            usage = (message.get("extra", {}).get("response") or {}).get("usage") or {}
            self.tokens = (
                self.tokens[0] + (usage.get("prompt_tokens") or 0),
                self.tokens[1] + (usage.get("completion_tokens") or 0),
            )
            self.tell()
            return message

        def tell(self) -> None:
            spent, made = self.tokens
            report("usage", dollars=self.cost, input_tokens=spent, output_tokens=made)

    settings = yaml.safe_load((builtin_config_dir / "default.yaml").read_text(encoding="utf-8"))
    environment = LocalEnvironment(
        cwd=session["worktree"],
        timeout=int(session["seconds"]),
        env=settings.get("environment", {}).get("env", {}),
    )
    limits = settings["agent"] | {
        "cost_limit": session["max_dollars"] or 0.0,
        "wall_time_limit_seconds": 0,  # ours leaves out the time of evaluations
        "step_limit": 0,
    }
    model = make_model(session, name, kwargs, settings.get("model", {}))
    return Agent(model, environment, **limits)


def main() -> int:
    """Run the agent; 0 when it handed in or reached a limit, 1 when it failed."""
    parser = argparse.ArgumentParser()
    litellm = "minisweagent.models.litellm_textbased_model.LitellmTextbasedModel"
    parser.add_argument("--class", dest="name", default=litellm)
    parser.add_argument("--kwargs", default="{}")
    given = parser.parse_args()
    session = json.load(sys.stdin)
    try:
        agent = make_agent(session, given.name, given.kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported in one line
        report("error", message=f"mini-swe-agent (extra 'agents') does not start: {error}")
        return 1
    try:
        done = agent.run(session["prompt"])
    except Exception as error:  # noqa: BLE001 - as above
        agent.tell()
        report("error", message=f"{type(error).__name__}: {error}")
        return 1
    agent.tell()
    sys.stdout.write(f"{done.get('exit_status', '')} {done.get('submission', '')}".strip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
