"""The tables of the experiment file. Each key: type, bounds, default, one sentence."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

#: Marks a knob that may change between two runs of the same command on one run folder.
FREE: dict[str, Any] = {"resume": "free"}

Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Level = Annotated[float, Field(gt=0.0, lt=0.5)]
Cap = Annotated[int, Field(ge=1)]
# What both searches have, said once.
MaxSeconds = Annotated[
    float | None,
    Field(
        gt=0,
        description="Hard cap: wall time of a round. Ends a run at a machine-dependent point.",
        json_schema_extra=FREE,
    ),
]
MaxDollars = Annotated[
    float | None,
    Field(ge=0, description="Hard cap: proposal costs in a round.", json_schema_extra=FREE),
]
MaxTokens = Annotated[
    Cap | None,
    Field(
        description="Hard cap: tokens of proposals in a round, input and output together.",
        json_schema_extra=FREE,
    ),
]
MaxProposals = Annotated[
    Cap | None,
    Field(
        description="Hard cap: proposals asked for in a round, with those that held no candidate.",
        json_schema_extra=FREE,
    ),
]
MaxFailures = Annotated[
    Cap,
    Field(
        description="Proposals in a row without a candidate (unreadable, refused, no answer) after "
        "which the search ends.",
        json_schema_extra=FREE,
    ),
]
Patience = Annotated[
    int,
    Field(ge=0, description="Stop after this many candidates without a better one; 0 never stops."),
]


class Section(BaseModel):
    """A table of the experiment file: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelConfig(Section):
    """The language model: φ itself, and what the artifact approximates."""

    name: str = Field(
        "smollm2-135m",
        min_length=1,
        description="An embedded model (`gal list models`), a hub name, a folder, or a .gguf file.",
    )
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = Field(
        "auto", description="`auto`: bfloat16 where the processor computes in it, else float32."
    )
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu, cuda, or cuda:N.")
    threads: int = Field(
        0, ge=0, description="Threads of torch; 0 leaves the choice to torch. Part of the result."
    )


#: Marks a key of the budget: which of them there are is the domain's.
BUDGET: dict[str, Any] = {"budget": True, "unset": "the domain's own"}


class ArtifactConfig(Section):
    """The algorithm under test, A₀, and the budget that every later one must keep."""

    start: str = Field(
        "compactor",
        min_length=1,
        description="A name (`gal list artifacts`), an artifact folder, or an expression (the "
        "domain's page says which). The default is the domain's own.",
    )
    compression_ratio: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="Budget: fraction of the KV cache that is dropped; 0.75 is 4x compression.",
        json_schema_extra=BUDGET,
    )
    density: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="Budget: fraction of the KV entries that a decoding step may attend to.",
        json_schema_extra=BUDGET,
    )
    sparse_question: bool | None = Field(
        None,
        description="Part of the budget: whether the rows of the question are sparse too (true), "
        "or the answer's alone (false).",
        json_schema_extra=BUDGET,
    )
    index_fraction: float | None = Field(
        None,
        ge=0.0,
        description="Budget: most bytes that a selector may keep of a context, over those of its "
        "keys.",
        json_schema_extra=BUDGET,
    )
    extension: float | None = Field(
        None,
        ge=1.0,
        description="Budget: length that the context is extended to, over the model's own window.",
        json_schema_extra=BUDGET,
    )
    bits: float | None = Field(
        None,
        gt=0.0,
        le=64.0,
        description="Budget: mean bits per number of the KV cache, everything counted.",
        json_schema_extra=BUDGET,
    )

    @property
    def budget(self) -> dict[str, float]:
        """The budget as artifacts state it: the keys that the domain takes."""
        found = {name: getattr(self, name) for name in budget_names()}
        return {name: float(value) for name, value in found.items() if value is not None}


def budget_names() -> tuple[str, ...]:
    """The keys of ``[artifact]`` that state a budget."""
    return tuple(
        name
        for name, field in ArtifactConfig.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("budget")
    )


class CriterionConfig(Section):
    """When an example set counts as a failure of the artifact."""

    tau0: float = Field(0.8, ge=0.0, lt=1.0, description="Least score of the reference (τ₀).")
    tau: float = Field(0.3, ge=0.0, lt=1.0, description="Least gap, reference minus artifact (τ).")


class DiscriminatorConfig(Section):
    """The search for probes on which the artifact loses what the reference solves."""

    search: str = Field("gepa", min_length=1, description="Search engine (`gal list searches`).")
    proposer: str = Field(
        "grammar", min_length=1, description="Who writes probes (`gal list proposers`)."
    )
    length: int = Field(256, ge=32, description="Length of a context to build for, in tokens.")
    screen_examples: int = Field(
        10,
        ge=2,
        description="Examples a candidate is screened on, twice as many where it looks like a "
        "break; estimates for the search only.",
    )
    fresh: int = Field(4, ge=0, description="Probes written from nothing before any is mutated.")
    max_candidates: Cap = Field(
        60, description="Hard cap: probe programs evaluated in a round.", json_schema_extra=FREE
    )
    max_evaluations: Cap | None = Field(
        None, description="Hard cap: evaluations in a round.", json_schema_extra=FREE
    )
    max_seconds: MaxSeconds = None
    max_dollars: MaxDollars = None
    max_tokens: MaxTokens = None
    max_proposals: MaxProposals = None
    max_failures: MaxFailures = 5
    patience: Patience = 0
    exploration: bool = Field(
        False, description="Add the exploration paragraph to the proposer's background."
    )
    seed_probe: str = Field(
        "", description="A probe file to start from (seeded); empty starts from nothing (seedless)."
    )


class AdmissionConfig(Section):
    """The test on fresh seeds that a found probe must pass to become a slice."""

    examples: int = Field(40, ge=5, description="Fresh examples of one admission attempt.")
    sealed: int = Field(
        40, ge=5, description="Further examples of an admitted slice, opened once a generation."
    )
    alpha: Level = Field(
        0.05, description="Total error level; attempt k of a round spends 6α/(π²k²) of it."
    )
    attempts: int = Field(5, ge=1, description="Most admission attempts in a round.")
    screen_margin: Probability = Field(
        0.15,
        description="Screening must exceed τ₀ and τ by this much before fresh seeds are spent.",
    )


class GeneratorConfig(Section):
    """The search for an algorithm that repairs the slices at the same budget."""

    search: str = Field("gepa", min_length=1, description="Search engine (`gal list searches`).")
    proposer: str = Field(
        "grammar", min_length=1, description="Who writes artifacts (`gal list proposers`)."
    )
    examples: int = Field(
        20, ge=2, description="Primary set: examples of each slice that every candidate answers."
    )
    fresh: int = Field(
        12, ge=0, description="Artifacts written from nothing before any is mutated."
    )
    max_candidates: Cap = Field(
        60, description="Hard cap: artifacts evaluated in a round.", json_schema_extra=FREE
    )
    max_evaluations: Cap | None = Field(
        None,
        description="Hard cap: evaluations of a round's search, without confirmation and gate.",
        json_schema_extra=FREE,
    )
    max_seconds: MaxSeconds = None
    max_dollars: MaxDollars = None
    max_tokens: MaxTokens = None
    max_proposals: MaxProposals = None
    max_failures: MaxFailures = 5
    patience: Patience = 0
    promising: Probability = Field(
        0.1,
        description="Gain over the parent on the primary set from which the suites are also run.",
    )
    alpha: Level = Field(
        0.05, description="Level of the improvement test (exact McNemar, one-sided)."
    )
    target: Probability = Field(
        0.95, description="Accuracy on the primary set at which a candidate is confirmed at once."
    )
    slice_delta: Probability = Field(
        0.2, description="Tolerated loss on an earlier slice: lower bound of (new - old) above -δ."
    )
    attempts: int = Field(3, ge=1, description="Most candidates of a round taken to the gate.")


class GateConfig(Section):
    """The regression test: each suite component must be non-inferior to the start artifact."""

    suites: Names = Field(("ruler",), description="Regression suites (`gal list suites`).")
    components: Names = Field(
        ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe"),
        description="Components of the suites; an empty list takes them all.",
    )
    examples: int = Field(32, ge=5, description="Least examples of each component.")
    most_examples: int = Field(
        96,
        ge=5,
        description="A component on which A₀'s scores vary gets up to so many, as `power` asks.",
    )
    power: float = Field(
        0.8,
        gt=0.0,
        lt=1.0,
        description="Probability of passing for an artifact that loses nothing.",
    )
    look: int = Field(
        12,
        ge=0,
        description="Examples of a component, others than the gate's, that a promising candidate "
        "answers during the search, three times as many where it seems to lose nothing; 0 leaves "
        "the suites to the gate alone.",
    )
    length: int = Field(256, ge=32, description="Length of a suite's contexts, in tokens.")
    max_new_tokens: int = Field(
        128, ge=1, description="Upper bound on the answer lengths that the suites prescribe."
    )
    delta: Probability = Field(
        0.1, description="Tolerated loss δ: the lower bound of (new - old) must be above -δ."
    )
    alpha: Level = Field(0.05, description="Level of the one-sided non-inferiority test.")
    reference_floor: Probability = Field(
        0.3, description="Components on which φ scores below this are shown and do not gate."
    )


class IslandsConfig(Section):
    """The search `islands`, in whichever half of the loop it is chosen."""

    count: int = Field(4, ge=1, le=64, description="Islands that evolve independently.")
    engine: str = Field(
        "gepa",
        min_length=1,
        description="Search engine on each island (`gal list searches`), not `islands` or `agent`.",
    )

    @field_validator("engine")
    @classmethod
    def _stands_alone(cls, value: str) -> str:
        """Islands of islands are no other search, and an agent ends a session, not an island's."""
        if value in ("islands", "agent"):
            raise ValueError("it cannot run on an island; choose another search engine")
        return value


class DataConfig(Section):
    """Files of yours that suites read; none of them comes with galoop."""

    text: str = Field(
        "",
        description="Suite `perplexity`: a text file, or a folder of .txt files such as PG19's; "
        "empty: a generated corpus, labelled so.",
    )
    essays: str = Field(
        "",
        description="Suites `ruler` and `needle`: the haystack; a text file, a folder of .txt "
        "files, or RULER's JSON file of essays.",
    )
    squad: str = Field("", description="Suite `ruler`, qa_1: SQuAD 2.0's JSON file.")
    hotpotqa: str = Field(
        "", description="Suite `ruler`, qa_2: HotpotQA's JSON file (distractor setting)."
    )
    leval: str = Field(
        "",
        description="Suite `leval`: the folder with coursera.jsonl and sci_fi.jsonl (GPL-3.0, "
        "which is why they do not come with galoop).",
    )


class LoopConfig(Section):
    """How often discriminator and generator take turns."""

    rounds: int = Field(2, ge=1, le=100, description="Rounds.", json_schema_extra=FREE)


class EvaluationConfig(Section):
    """How answers are computed."""

    repeats: int = Field(
        1, ge=1, description="Answers per example; more than one for stochastic systems."
    )
    max_new_tokens: int = Field(16, ge=1, le=4096, description="Length of a probe's answer.")
    decode_batch: int = Field(
        64, ge=1, description="Most systems and examples that share one decoding step."
    )
    capture_memory_mb: int = Field(
        2048,
        ge=64,
        description="Memory for captured prefills that are kept for replay.",
        json_schema_extra=FREE,
    )
    exact_margin: float | None = Field(
        None,
        ge=0.0,
        description="Batched answers with two best logits closer than this are decoded again "
        "alone, so that they equal kvpress's; unset finds out what the model and processor need.",
    )


class IsolationConfig(Section):
    """How candidate code is run."""

    require: bool = Field(
        False,
        description="Refuse to run candidate code in plain processes.",
        json_schema_extra=FREE,
    )
    tier: Literal["auto", "bubblewrap", "landlock", "plain"] = Field(
        "auto",
        description="`auto` takes the strongest that works (`gal doctor`).",
        json_schema_extra=FREE,
    )
    seconds: float = Field(30.0, gt=0, description="Time limit of one candidate's step.")
    memory_mb: int = Field(2048, ge=128, description="Memory limit of one candidate.")
