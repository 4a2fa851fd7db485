"""The prompt probe: a prompt, or a program that gives one for each seed, and what is refused."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from galoop.domains.sparse_video.prompts import MOST_WORDS, parse, words_of
from galoop.errors import UsageError
from galoop.probing.builder import MOST_MESSAGE, IsolatedBuilder, clip, distinct
from galoop.probing.static import ALLOWED_MODULES, Rejection, check_nodes, parse_source
from galoop.types import State

if TYPE_CHECKING:
    from galoop.isolation import ForkServer, Limits, Tier

MOST_SOURCE_CHARS = 20_000
MOST_PROMPT_CHARS = 400

CONTRACT = f"""\
A probe is one of two things:

- a prompt: one line of text, a sentence of the video model's language;
- a Python file that defines at its top level

      def prompt(rng: random.Random) -> str:

  which is called once for each example and returns such a sentence. `rng` is seeded anew for every
  example and is the only source of chance.

The language: `things on a [pattern] tone background[, effect]...`, where things are one or two of
`(a | two) [small | large] colour shape motion`, joined by `and`, of different colours and at most
three in all; two large ones do not fit; after `two` the shape is in the plural. At most
{MOST_WORDS} words.

    a small red circle moving left on a gray background
    two blue crosses resting and a large yellow square circling on a striped dark background, \
flickering light, with shadows

Each example is a prompt and a noise of its own: the examples of a plain prompt differ in their
noise alone. The reference's clip has to show what the prompt says.

What is rejected, always with the reason:
- a file that does not parse, or that defines no `prompt` of one parameter; imports other than
  {", ".join(name for name in ALLOWED_MODULES if name != "__future__")}; calls of file, network and
  introspection functions, and the clock;
- a `prompt` that raises, runs over its limits of time and memory, or returns anything but text;
- output that differs when the same seeds are asked again, in another process and another order;
- a prompt that is not of the language;
- a program that gives one prompt for more than three quarters of the seeds: write that prompt.
"""


@dataclass(frozen=True)
class VideoPrompt:
    """One example's input: a prompt and the seed of its noise."""

    prompt: str
    seed: int


@dataclass(frozen=True)
class PromptProbe:
    """What became of one probe.

    Attributes
    ----------
    prompts : tuple of VideoPrompt
        In the order of the seeds; empty when rejected.
    rejected : str
        The reason, for people and proposers; empty when accepted.
    state : State
        ``scored`` when accepted; ``invalid`` for a broken contract; ``failed`` for a crash.
    code : str
        One stable word for the reason.
    """

    prompts: tuple[VideoPrompt, ...]
    rejected: str = ""
    state: State = State.SCORED
    code: str = ""


def is_program(source: str) -> bool:
    """Whether a probe is meant as a program: it has several lines, or begins like Python."""
    text = source.strip()
    return "\n" in text or text.startswith(("def ", "async ", "import ", "from ", "#"))


def check_program(source: str) -> Rejection | None:
    """The first static fault of a program, or None. The sandbox is the barrier, not this."""
    tree = parse_source(source, MOST_SOURCE_CHARS, "prompt")
    if isinstance(tree, Rejection):
        return tree
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "prompt"]
    if not found:
        return Rejection(
            "no-prompt", "the probe defines no prompt: add `def prompt(rng)` at the top level"
        )
    arguments = found[-1].args
    plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults)
    if len([*arguments.posonlyargs, *arguments.args]) != 1 or not plain:
        return Rejection(
            "wrong-signature",
            f"prompt takes ({ast.unparse(arguments)}): it has to take exactly one parameter, rng",
        )
    return check_nodes(tree)


def check_prompt(prompt: str) -> Rejection | None:
    """Why a prompt is not of the model's language, or None."""
    if len(prompt) > MOST_PROMPT_CHARS or len(words_of(prompt)) > MOST_WORDS:
        return Rejection(
            "too-long", f"a prompt has at most {MOST_WORDS} words: {prompt[:80]!r}… is longer"
        )
    try:
        parse(prompt)
    except UsageError as error:
        return Rejection("language", error.what)
    return None


class PromptProbeBuilder(IsolatedBuilder[PromptProbe]):
    """The trusted side: runs programs isolated and checks every prompt here.

    Parameters
    ----------
    tier : Tier or None
        How to isolate; None takes the best that works here.
    limits : Limits or None
        Of one fork, which answers all the seeds of one call; None means 5 seconds, 256 MB.
    """

    canary = "def prompt(rng):\n    return ''\n"
    serve = "galoop.domains.sparse_video.probe_worker:serve"

    def __init__(self, *, tier: Tier | None = None, limits: Limits | None = None) -> None:
        self._tier, self._limits = tier, limits

    def build(self, source: str, seeds: Sequence[int]) -> PromptProbe:
        """The prompts of a probe, one a seed, or none and the reason.

        Parameters
        ----------
        source : str
        seeds : sequence of int
            Distinct; also the seeds of the noise.

        Raises
        ------
        IsolationError
            When the isolation itself does not work. Never because of what a probe did.
        """
        wanted = distinct(seeds)
        if not source.strip():
            return _rejected(Rejection("empty", "the probe is empty: write a prompt"))
        if not is_program(source):
            prompt = source.strip()
            fault = check_prompt(prompt)
            return _rejected(fault) if fault else _accepted([prompt] * len(wanted), wanted)
        fault = check_program(source)
        return _rejected(fault) if fault else self._program(source, wanted)

    def _program(self, source: str, seeds: list[int]) -> PromptProbe:
        first = self._run(source, seeds, "first")
        if isinstance(first, PromptProbe):
            return first
        for seed, prompt in zip(seeds, first, strict=True):
            fault = check_prompt(prompt)
            if fault is not None:
                return _rejected(Rejection(fault.code, f"{fault.reason} (seed {seed})"))
        second = self._run(source, seeds[::-1], "second")
        if isinstance(second, PromptProbe):
            return second
        for seed, one, other in zip(seeds, first, second[::-1], strict=True):
            if one != other:
                return _rejected(
                    Rejection(
                        "not-deterministic",
                        f"two calls for seed {seed} differ: draw from the rng argument only, keep "
                        "no state between calls, and do not depend on the order of a set",
                    )
                )
        prompt, times = Counter(first).most_common(1)[0]
        if len(seeds) > 1 and 4 * times > 3 * len(seeds):
            return _rejected(
                Rejection(
                    "repeated-prompt",
                    f"{times} of {len(seeds)} seeds give {prompt!r}: draw more of it from rng, or "
                    "write the prompt itself",
                )
            )
        return _accepted(first, seeds)

    def _run(self, source: str, seeds: list[int], salt: str) -> list[str] | PromptProbe:
        request = {"source": source, "seeds": seeds, "salt": salt, "most": MOST_PROMPT_CHARS}
        reply = self._call(request)
        if isinstance(reply, PromptProbe):
            return reply
        error = reply.get("error")
        if isinstance(error, Mapping):
            return _from_error(error)
        results = reply.get("results")
        if (
            not isinstance(results, list)
            or len(results) != len(seeds)
            or not all(isinstance(item, str) for item in results)
        ):
            return _rejected(
                Rejection("forged-reply", "the probe's process sent something else than prompts")
            )
        return results

    def _refused(self, fault: Rejection, state: State) -> PromptProbe:
        return _rejected(fault, state)

    def _started(self) -> tuple[ForkServer, Limits]:
        from galoop.isolation import ForkServer, Limits

        if self._limits is None:
            self._limits = Limits(seconds=5.0, memory_mb=256, output_bytes=2**20)
        if self._server is None:
            self._server = ForkServer(
                "galoop.domains.sparse_video.probe_worker:warm", {}, tier=self._tier, name="prompts"
            )
        return self._server, self._limits


def _accepted(prompts: Sequence[str], seeds: Sequence[int]) -> PromptProbe:
    pairs = zip(prompts, seeds, strict=True)
    return PromptProbe(tuple(VideoPrompt(prompt, seed) for prompt, seed in pairs))


def _from_error(error: Mapping[str, Any]) -> PromptProbe:
    """An error reply, which the probe may have forged, as a rejection."""
    message, seed = str(error.get("message", ""))[: 2 * MOST_MESSAGE], error.get("seed")
    at = f" for seed {seed}" if isinstance(seed, int) else ""
    if error.get("kind") == "memory":
        return _rejected(Rejection("memory", f"the probe did not finish{at}: {message}"),
                         State.FAILED)  # fmt: skip
    return _rejected(Rejection("raises", f"the probe fails{at}: {message}: correct it"))


def _rejected(fault: Rejection, state: State = State.INVALID) -> PromptProbe:
    return PromptProbe((), rejected=clip(fault.reason), state=state, code=fault.code)
