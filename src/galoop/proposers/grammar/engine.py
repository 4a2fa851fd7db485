"""What every grammar shares: moves that learn, choices that learn, and no repeats.

A grammar is a :class:`GrammarProposer` over its own kind of syntax tree. It says how to write a
fresh tree, which moves change one, and how a tree becomes a candidate; this module remembers
which tree each candidate came from, learns from the feedback which moves and which choices paid
(two Thompson-sampling bandits with an exploration floor), and sees to it that no program is
proposed twice. Everything is a pure function of the seed and the sequence of requests.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from galoop.errors import BudgetExhausted
from galoop.hashing import derive_seed
from galoop.proposers.protocol import Evaluated, Proposal, Request
from galoop.types import Candidate, Feedback, State

Tree = TypeVar("Tree")

FRESH = "fresh"
FOREIGN = "edit the source"


class Bandit:
    """Thompson sampling over named arms, with a floor of exploration and a fading memory.

    Each arm has a Beta posterior from a uniform prior. Rewards lie in [0, 1] and count as that
    fraction of a success. Before each update all counts shrink by ``memory``, because what pays
    early in a search (making an example answerable) is not what pays late.

    Parameters
    ----------
    arms : sequence of str
        The arms, in a fixed order; further arms may appear later.
    floor : float
        The share of choices that ignore what was learned (they follow the weights alone).
    memory : float
        The factor on old evidence per update, in (0, 1].

    Notes
    -----
    Chapelle and Li, "An Empirical Evaluation of Thompson Sampling", NeurIPS 2011.
    """

    def __init__(self, arms: Sequence[str] = (), *, floor: float = 0.2, memory: float = 0.99):
        self.floor = floor
        self.memory = memory
        self._counts: dict[str, tuple[float, float]] = dict.fromkeys(arms, (0.0, 0.0))

    def choose(
        self,
        rng: random.Random,
        among: Sequence[str] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> str:
        """Choose one arm.

        Parameters
        ----------
        rng : random.Random
        among : sequence of str, optional
            The arms that can be chosen now; all known arms by default.
        weights : mapping of str to float, optional
            Factors on the arms (1 where not named); 0 excludes an arm unless all are excluded.
        """
        arms = list(among if among is not None else self._counts)
        if not arms:
            raise ValueError("a bandit needs at least one arm to choose from")
        factors = [max(0.0, (weights or {}).get(arm, 1.0)) for arm in arms]
        if not any(factors):
            factors = [1.0] * len(arms)
        if rng.random() < self.floor:
            return rng.choices(arms, factors)[0]
        draws = []
        for arm, factor in zip(arms, factors, strict=True):
            won, lost = self._counts.get(arm, (0.0, 0.0))
            draws.append(factor * rng.betavariate(1.0 + won, 1.0 + lost))
        return arms[draws.index(max(draws))]

    def update(self, arm: str, reward: float) -> None:
        """Tell the bandit that ``arm`` earned ``reward`` (clipped to [0, 1])."""
        reward = min(1.0, max(0.0, reward))
        for name, (won, lost) in self._counts.items():
            self._counts[name] = (won * self.memory, lost * self.memory)
        won, lost = self._counts.get(arm, (0.0, 0.0))
        self._counts[arm] = (won + reward, lost + 1.0 - reward)

    def known(self, arm: str) -> bool:
        """Whether the arm was ever told of."""
        return arm in self._counts

    def mean(self, arm: str) -> float:
        """The posterior mean of an arm's reward; 0.5 for an arm without evidence."""
        won, lost = self._counts.get(arm, (0.0, 0.0))
        return (1.0 + won) / (2.0 + won + lost)


@dataclass
class Origin(Generic[Tree]):
    """Where a candidate of ours came from."""

    tree: Tree | None
    move: str
    parent: Feedback | None  # None: there was no parent, so no move was chosen


@dataclass(frozen=True)
class MoveContext(Generic[Tree]):
    """What a move may look at.

    Attributes
    ----------
    rng : random.Random
        The only source of randomness of this proposal.
    request : Request
    known : tuple of (tree, feedback)
        The evaluated candidates of the history whose trees are known, oldest first.
    """

    rng: random.Random
    request: Request
    known: tuple[tuple[Tree, Feedback], ...] = field(default=())

    def partner(self, other_than: Tree) -> Tree | None:
        """A tree to cross with, better ones more often (a tournament of two), or None."""
        pool = [entry for entry in self.known if entry[0] != other_than]
        if not pool:
            return None
        first, second = self.rng.choice(pool), self.rng.choice(pool)
        return first[0] if first[1].score >= second[1].score else second[0]


Move = Callable[[Tree, MoveContext[Tree]], "Tree | None"]


class GrammarProposer(ABC, Generic[Tree]):
    """A proposer that writes and mutates programs as syntax trees.

    A grammar subclasses this and provides the abstract methods. Trees must be immutable.

    Parameters
    ----------
    seed : int
        Together with the requests it determines every proposal.
    """

    name = "grammar"
    replayable = True
    ATTEMPTS: ClassVar[int] = 60
    FRESH_ATTEMPTS: ClassVar[int] = 500

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.choices: dict[str, Bandit] = {}
        self.move_bandit = Bandit([FRESH, *self.moves()])
        self._calls = 0
        self._origins: dict[str, Origin[Tree]] = {}
        self._seen: set[str] = set()
        self._learned: set[str] = set()
        self._best = 0.0
        self._keys: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    # What a grammar provides.

    @abstractmethod
    def moves(self) -> Mapping[str, Move[Tree]]:
        """The moves by name, in a fixed order. A move returns None where it does not apply."""

    @abstractmethod
    def fresh(self, context: MoveContext[Tree]) -> Tree:
        """Write a new tree from nothing. Draw learned choices through :meth:`pick`."""

    @abstractmethod
    def render(self, tree: Tree, note: str) -> Candidate:
        """Write the program of a tree; the same tree always gives the same files."""

    @abstractmethod
    def identity(self, tree: Tree) -> str:
        """A string equal for trees that count as the same program (for never repeating)."""

    @abstractmethod
    def features(self, tree: Tree) -> Mapping[str, str]:
        """The choices in a tree to learn about: slot -> the option that was taken."""

    def move_weights(self, context: MoveContext[Tree]) -> Mapping[str, float]:
        """Factors on the moves for this request (1 where not named)."""
        return {}

    def choice_weights(self, slot: str, context: MoveContext[Tree]) -> Mapping[str, float]:
        """Factors on the options of ``slot`` for this request (1 where not named)."""
        return {}

    def revive(self, candidate: Candidate) -> Tree | None:
        """The tree of a candidate that somebody else wrote, where it can be recovered."""
        return None

    def edit(self, candidate: Candidate, context: MoveContext[Tree]) -> Candidate | None:
        """Mutate the source of a candidate whose tree is unknown; None where it cannot be."""
        return None

    def excluded(self, tree: Tree, candidate: Candidate, request: Request) -> bool:
        """Whether this program must not be proposed (for example: it is already frozen)."""
        return False

    def paid(self, child: Feedback, parent: Feedback) -> bool:
        """Whether the move from ``parent`` to ``child`` paid: the score rose."""
        return child.score > parent.score + 1e-9

    def worth(self, feedback: Feedback, best: float) -> float:
        """What the choices in a program earn, in [0, 1]: its score relative to the best so far."""
        return feedback.score / best if best > 0 else 0.0

    # What a grammar uses.

    def pick(self, slot: str, options: Sequence[str], context: MoveContext[Tree]) -> str:
        """Choose an option of ``slot``: what was learned, the weights, and exploration."""
        bandit = self.choices.setdefault(slot, Bandit())
        return bandit.choose(context.rng, options, self.choice_weights(slot, context))

    # The engine.

    def propose(self, request: Request) -> Proposal:
        """Return a program that was never proposed or evaluated before in this search."""
        self._learn(request.history)
        rng = random.Random(derive_seed(self.seed, self.name, self._calls))
        self._calls += 1
        context = MoveContext(rng, request, self._known(request.history))
        parent = request.parent
        if parent is not None:
            self._seen.add(self._key(parent.candidate))
            found = self._from_parent(parent, context)
            if found is not None:
                return Proposal(found)
        for _ in range(self.FRESH_ATTEMPTS):
            told = None if parent is None else parent.feedback
            found = self._accept(self.fresh(context), FRESH, told, context)
            if found is not None:
                return Proposal(found)
        raise BudgetExhausted(
            f"the grammar found no new program in {self.FRESH_ATTEMPTS} attempts",
            "its space is exhausted for this search: use another seed or another proposer",
        )

    def _from_parent(self, parent: Evaluated, context: MoveContext[Tree]) -> Candidate | None:
        origin = self._origins.get(self._key(parent.candidate))
        tree = origin.tree if origin is not None else self.revive(parent.candidate)
        if tree is None:
            return self._from_foreign(parent, context)
        moves = self.moves()
        weights = self.move_weights(context)
        tried: set[str] = set()
        for attempt in range(self.ATTEMPTS):
            open_moves = [name for name in [FRESH, *moves] if name not in tried]
            name = self.move_bandit.choose(context.rng, open_moves, weights)
            child = self.fresh(context) if name == FRESH else moves[name](tree, context)
            if child is None:
                tried.add(name)  # does not apply to this tree
                continue
            found = self._accept(child, name, parent.feedback, context)
            if found is not None:
                return found
            if attempt % 10 == 9 and name != FRESH:
                tried.add(name)  # it keeps giving programs that were seen
        return None

    def _from_foreign(self, parent: Evaluated, context: MoveContext[Tree]) -> Candidate | None:
        arms = [FRESH, FOREIGN]
        for _ in range(self.ATTEMPTS):
            if self.move_bandit.choose(context.rng, arms) == FRESH:
                return None
            candidate = self.edit(parent.candidate, context)
            if candidate is None:
                return None
            if candidate.key not in self._seen:
                self._remember(candidate, Origin(None, FOREIGN, parent.feedback))
                return candidate
        return None

    def _accept(
        self, tree: Tree, move: str, parent: Feedback | None, context: MoveContext[Tree]
    ) -> Candidate | None:
        identity = "tree:" + self.identity(tree)
        if identity in self._seen:
            return None
        candidate = self.render(tree, move)
        if candidate.key in self._seen or self.excluded(tree, candidate, context.request):
            return None
        self._seen.add(identity)
        self._remember(candidate, Origin(tree, move, parent))
        return candidate

    def _remember(self, candidate: Candidate, origin: Origin[Tree]) -> None:
        self._seen.add(candidate.key)
        self._origins[candidate.key] = origin

    def _key(self, candidate: Candidate) -> str:
        """The candidate's key; hashing the whole history at every request would be quadratic."""
        content = (candidate.kind, tuple(candidate.files.items()))
        if content not in self._keys:
            self._keys[content] = candidate.key
        return self._keys[content]

    def _known(self, history: Sequence[Evaluated]) -> tuple[tuple[Tree, Feedback], ...]:
        known = []
        for entry in history:
            origin = self._origins.get(self._key(entry.candidate))
            if origin is not None and origin.tree is not None:
                known.append((origin.tree, entry.feedback))
        return tuple(known)

    def _learn(self, history: Sequence[Evaluated]) -> None:
        """Credit moves that paid, and choices by what they are worth."""
        for entry in history:
            key, feedback = self._key(entry.candidate), entry.feedback
            if key in self._learned or feedback.state is State.INFRASTRUCTURE:
                continue
            self._learned.add(key)
            self._seen.add(key)
            self._best = max(self._best, feedback.score)
            origin = self._origins.get(key)
            if origin is None:
                continue
            if origin.parent is not None:
                paid = self.paid(feedback, origin.parent)
                self.move_bandit.update(origin.move, 1.0 if paid else 0.0)
            if origin.tree is not None:
                reward = self.worth(feedback, self._best)
                for slot, option in self.features(origin.tree).items():
                    self.choices.setdefault(slot, Bandit()).update(option, reward)
