"""The tables of the experiment file for proposers that are not a grammar."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from galoop._sections import FREE, Cap, Names, Section

# What several seats have, said once.
AnswerSeconds = Annotated[
    float,
    Field(gt=0, description="Seconds to wait for one answer.", json_schema_extra=FREE),
]
InputPrice = Annotated[
    float | None,
    Field(
        ge=0,
        description="Dollars per million input tokens, where no price is reported and litellm's "
        "table is missing, wrong or does not know the model.",
        json_schema_extra=FREE,
    ),
]
OutputPrice = Annotated[
    float | None,
    Field(ge=0, description="Dollars per million output tokens.", json_schema_extra=FREE),
]


class LanguageModelConfig(Section):
    """The proposer `language-model`; the key comes from the environment alone."""

    model: str = Field(
        "", description="The model as litellm names it, for example `anthropic/…` or `openai/…`."
    )
    # Neither user nor query: the experiment is written into the run folder, which holds no key.
    api_base: str = Field(
        "",
        pattern=r"^(https?://[^@?#\s]+)?$",
        description="Address of an OpenAI-compatible server (`http://127.0.0.1:8000/v1`, with "
        "`openai/<name>` as the model); empty: the provider's own.",
        json_schema_extra=FREE,
    )
    key_variable: str = Field(
        "",
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        description="Environment variable that holds the key; empty: the provider's usual one, and "
        "none at all for an `openai/…` model with an address of its own.",
        json_schema_extra=FREE,
    )
    temperature: float | None = Field(
        None, ge=0.0, le=2.0, description="Sampling temperature; unset leaves it to the provider."
    )
    max_output_tokens: Cap = Field(16384, description="Most tokens of one answer.")
    timeout: AnswerSeconds = 600.0
    retries: int = Field(
        5,
        ge=0,
        le=100,
        description="Further tries after a failure that may pass (429, 5xx, a lost connection).",
        json_schema_extra=FREE,
    )
    backoff: float = Field(
        1.0,
        ge=0,
        description="Seconds before the first further try; doubles up to a minute, and a server's "
        "`Retry-After` is kept.",
        json_schema_extra=FREE,
    )
    excerpts: int = Field(4, ge=0, description="Most examples shown of the parent.")
    history: int = Field(12, ge=0, description="Most earlier candidates told of, in a line each.")
    prompt_characters: int = Field(
        120_000, ge=4000, description="Longest prompt; sources and excerpts are cut to fit."
    )
    input_price: InputPrice = None
    output_price: OutputPrice = None


class FilesConfig(Section):
    """The proposer `files`: each request in a folder, and a wait for its answer."""

    folder: str = Field(
        "",
        description="Where the requests are written; empty: `proposers/` of the run folder.",
        json_schema_extra=FREE,
    )
    timeout: AnswerSeconds = 86400.0
    poll: float = Field(
        0.5, gt=0, description="Seconds between two looks for the answer.", json_schema_extra=FREE
    )


class RecordedConfig(Section):
    """The proposer `recorded`: what an earlier run proposed, handed back without any model."""

    run: str = Field("", description="The run folder whose proposals are handed back.")


class AgentConfig(Section):
    """The proposer `agent`: a coding agent; with the search `agent` it runs its own loop."""

    adapter: Literal[
        "claude-code", "claude-agent-sdk", "codex", "cursor", "mini-swe-agent", "command"
    ] = Field("command", description="Which coding agent.")
    command: Names = Field(
        (),
        description="Program and arguments; for adapters other than `command` empty, or another "
        "place of the agent's program.",
    )
    model: str = Field("", description="The agent's model; empty: the agent's own default.")
    arguments: Names = Field((), description="Further arguments of the agent's command line.")
    max_candidates: Cap = Field(
        20,
        description="Evaluations of a session that runs its own loop (MAX_CANDIDATES).",
        json_schema_extra=FREE,
    )
    seconds: float = Field(
        3600.0,
        gt=0,
        description="Time limit of a session, without the time of evaluations.",
        json_schema_extra=FREE,
    )
    grace: float = Field(
        30.0,
        ge=0,
        description="Seconds an agent has to end when the search is over, before it is killed.",
        json_schema_extra=FREE,
    )
    environment: Names = Field(
        (),
        description="Environment variables that it gets besides those of its own credentials.",
        json_schema_extra=FREE,
    )
    readable: Names = Field(
        (),
        description="Further files and folders that a sandboxed agent may read.",
        json_schema_extra=FREE,
    )
    network: bool = Field(
        True,
        description="Whether a sandboxed agent has the network, which it needs to reach its model.",
        json_schema_extra=FREE,
    )
    input_price: InputPrice = None
    output_price: OutputPrice = None
