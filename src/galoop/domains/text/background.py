"""What a proposer of probes is told: goals and constraints, and no hints of attack strategies."""

from __future__ import annotations

OBJECTIVE = """\
Write a program that builds examples (a context, a question about it, and its gold answer) on which
the unmodified language model answers correctly while the same model with the approximation under
test does not. An example counts only where the unmodified model is right: a task that is too hard
for the model itself, ambiguous, or wrong says nothing about the approximation. The program has to
do so reliably, on every seed, not on a lucky few.
"""

BACKGROUND = """\
The model reads the context, then the question; both answer greedily, from the same tokens. Examples
should look like text that people work with and should be answerable from the context alone. What
is found is tested again on fresh seeds before it counts, and joins a benchmark that later versions
of the approximation have to solve.
"""

EXPLORATION = """\
Explore widely before refining: prefer programs that differ in kind from those tried before (another
sort of text, another sort of question, another place or form of the answer) over small variations
of the best one so far.
"""

__all__ = ["BACKGROUND", "EXPLORATION", "OBJECTIVE"]
