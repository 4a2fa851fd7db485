"""What an established benchmark offers here: examples of its components at a wanted length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from galoop.types import Example


@runtime_checkable
class Suite(Protocol):
    """An established benchmark (B₀), used as a regression test component by component.

    A suite that reads a user's files names the keys of ``[data]`` it knows in a class attribute
    ``takes``; those that are set are given to it as paths under these names. A method
    ``missing()``, if it has one, returns the components it cannot build without data, and what to
    give for each.
    """

    name: str

    def components(self) -> tuple[str, ...]:
        """Names of the components, in the benchmark's own order."""
        ...

    def build(
        self,
        component: str,
        n: int,
        seed: int,
        length: int,
        count_tokens: Callable[[str], int],
    ) -> list[Example]:
        """Generate examples.

        Parameters
        ----------
        component : str
            One of :meth:`components`.
        n : int
            How many. The first k examples of a larger n are the examples of n = k. A suite with a
            fixed stock returns all it has where ``n`` is larger.
        seed : int
        length : int
            Most tokens of a context, as ``count_tokens`` counts them.
        count_tokens : callable
            Tokens of a text, without special tokens.

        Raises
        ------
        UnknownNameError
            If there is no such component.
        UsageError
            If the component cannot be built within ``length``; says the smallest that works.
        """
        ...

    def parameters(
        self, component: str, length: int, count_tokens: Callable[[str], int]
    ) -> Mapping[str, Any]:
        """The component's parameters at that length, for records: JSON-compatible and small."""
        ...
