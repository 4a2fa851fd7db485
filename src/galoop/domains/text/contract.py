"""The probe contract: its numbers, and its text for whoever writes probes.

The text says what a probe is and what is rejected. It says nothing about what might make a
system fail: finding that out is the proposer's work.
"""

from __future__ import annotations

from dataclasses import dataclass

from galoop.probing.static import ALLOWED_MODULES

REQUIRED_KEYS: tuple[str, ...] = ("context", "question", "answer")
OPTIONAL_KEYS: tuple[str, ...] = ("answer_prefix", "evidence")


@dataclass(frozen=True)
class ProbeRules:
    """The bounds that a probe's examples are held to.

    Attributes
    ----------
    length : int
        The ``length`` that ``build`` is given: most tokens of a context.
    max_context_tokens : int
        What the model's window leaves for the context; the smaller of the two bounds counts.
    max_new_tokens : int
        Length of the system's answer in tokens; the gold answers together have to fit.
    max_question_tokens : int
        Most tokens of question and answer prefix together. They are never compressed, so a long
        one would only take the window away from the context.
    max_answers, max_evidence : int
        Most gold answers and most evidence passages of one example.
    max_source_chars : int
        Most characters of a probe.
    """

    length: int
    max_context_tokens: int
    max_new_tokens: int = 16
    max_question_tokens: int = 96
    max_answers: int = 8
    max_evidence: int = 16
    max_source_chars: int = 40_000

    @property
    def most_tokens(self) -> int:
        """Most tokens of a context."""
        return min(self.length, self.max_context_tokens)

    @property
    def fewest_tokens(self) -> int:
        """Fewest tokens of a context: half of what it may be.

        A budget is a fraction of the context, so a short context leaves too few kept tokens to
        say anything about length, and some algorithms do not run at all on a dozen tokens.
        """
        return self.most_tokens // 2

    @property
    def most_chars(self) -> int:
        """Most characters of a context, checked first so that nothing huge is tokenized."""
        return 64 * self.most_tokens


_TEXT = """\
A probe is one Python file that builds examples: a context, a question about it, and the answer.
It defines at its top level

    def build(rng: random.Random, length: int, count_tokens: Callable[[str], int]) -> dict:

which is called once for every example and returns a dict with these keys and no others:

    "context"        str. The text that the system reads. {fewest} to {most} tokens.
    "question"       str. Asked after the context, which it follows directly: begin it with a line
                     end.
    "answer"         str, or a list of 1 to {answers} different strings that all have to be given.
    "answer_prefix"  str, optional. The words that the system's answer is made to begin with,
                     without white space at its end.
    "evidence"       list of str, optional. Passages copied from the context from which the answer
                     follows.

Arguments: `rng` is seeded anew for every example and is the only source of chance. `length` is
the most tokens a context may have, here {most}. `count_tokens(text)` counts tokens as the model
does. Build a context that comes close to `length` and does not exceed it; count the final text,
since the parts of a text do not always add up.

How an answer is scored: the system continues greedily after the answer prefix for at most
{new} tokens; the score is 1 if every answer occurs there as a word or phrase of its own (case and
white space do not matter), else 0. A good example has one defensible answer, and a careful reader
of the context gets it right.

What is rejected, always with the reason:
- a file that does not parse, is longer than {source} characters, or has no top-level `build` of
  three parameters;
- imports other than {modules};
- calls of file, network and introspection functions, and the clock;
- a `build` that raises, runs over its limits of time and memory, or returns anything else than
  the dict above;
- output that differs when the same seeds are built again, in another process and another order:
  use `rng` only, keep no state between calls;
- a context of fewer than {fewest} or more than {most} tokens; question and answer prefix of more
  than {question} tokens together; answers of more than {new} tokens together;
- an empty question or answer; an answer or an evidence passage that does not occur in the context;
- an answer that the question or the answer prefix already contains;
- examples that repeat: the same context for two seeds, or the same answer for most seeds;
- control tokens of the model's chat template, control characters, text that is not valid Unicode,
  and a context that ends in "#".
"""


def probe_contract(rules: ProbeRules) -> str:
    """The contract in words, with the numbers of ``rules`` filled in."""
    return _TEXT.format(
        fewest=rules.fewest_tokens,
        most=rules.most_tokens,
        answers=rules.max_answers,
        new=rules.max_new_tokens,
        source=rules.max_source_chars,
        question=rules.max_question_tokens,
        modules=", ".join(name for name in ALLOWED_MODULES if name != "__future__"),
    )
