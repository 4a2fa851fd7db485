"""mini-swe-agent: a small agent in Python, run by a script of ours in the sandbox."""

from __future__ import annotations

import json
import sys

from galoop.proposers.agents.adapter import Adapter, Job, Parser
from galoop.proposers.agents.command import CommandParser


class MiniSweAgent(Adapter):
    """mini-swe-agent 2 with a litellm model; needs the extra ``agents``."""

    name = "mini-swe-agent"
    program = sys.executable
    keys = (
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "OPENROUTER_API_KEY",
        "MISTRAL_API_KEY",
        "DEEPSEEK_API_KEY",
    )
    addresses = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE")
    files = ("mini_runner.py",)

    def argv(self, job: Job) -> list[str]:
        """The script, with what it needs to know as JSON on its input."""
        return [job.program, f"{job.tools}/mini_runner.py", *job.arguments]

    def stdin(self, job: Job) -> bytes:
        """The session as JSON."""
        data = {
            "prompt": job.prompt,
            "model": job.model,
            "worktree": job.worktree,
            "seconds": job.seconds,
            "max_dollars": job.max_dollars,
        }
        return json.dumps(data).encode("utf-8")

    def environment(self, job: Job) -> dict[str, str]:
        """Its settings folder, and no greeting."""
        return {
            "MSWEA_GLOBAL_CONFIG_DIR": f"{job.home}/mini-swe-agent",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_CONFIGURED": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def parser(self) -> Parser:
        """The script reports as a ``command`` does."""
        return CommandParser()
