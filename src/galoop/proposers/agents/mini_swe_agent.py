"""mini-swe-agent: a small agent in Python, run by a script of ours in the sandbox."""

from __future__ import annotations

from galoop.proposers.agents.adapter import Job
from galoop.proposers.agents.script import ScriptAdapter


class MiniSweAgent(ScriptAdapter):
    """mini-swe-agent 2 with a litellm model; needs the extra ``agents``."""

    name = "mini-swe-agent"
    keys = (
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "OPENROUTER_API_KEY",
        "MISTRAL_API_KEY",
        "DEEPSEEK_API_KEY",
    )
    addresses = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE")
    script = "mini_runner.py"
    files = (script,)

    def environment(self, job: Job) -> dict[str, str]:
        """Its settings folder, and no greeting."""
        return {
            "MSWEA_GLOBAL_CONFIG_DIR": f"{job.home}/mini-swe-agent",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_CONFIGURED": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
