"""How selector programs are written and changed. Every function is pure given its chooser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from galoop.domains.sparse_decoding.grammar.tree import (
    BY_QUERY,
    COMBINES,
    EITHER_SIGN,
    FLOORS,
    FRACTIONS,
    GROUPS,
    MAX_SIGNALS,
    POOLS,
    RECENTS,
    RUNS,
    SIGNALS,
    SINKS,
    SPREADS,
    TRANSFORMS,
    WEIGHTS,
    WIDTHS,
    Program,
    Signal,
    normalise,
)
from galoop.proposers.grammar.signals import moves
from galoop.proposers.grammar.signals.moves import Chooser, SignalMoves, inserted, swap

_SHARED = SignalMoves(SIGNALS, TRANSFORMS, COMBINES, POOLS, WIDTHS, WEIGHTS)


def new_signal(choose: Chooser, names: Sequence[str]) -> Signal:
    """One of the named signals with random options."""
    name = choose.text("signal", names)
    options = _SHARED.options(name, choose)
    flip = name in EITHER_SIGN and choose.rng.random() < 0.5
    return Signal(
        name,
        options,
        sign=-1 if flip else 1,
        transform=choose.text("transform", TRANSFORMS[1:]),
        weight=choose.number("weight", WEIGHTS),
    )


def plain_program(choose: Chooser, names: Sequence[str], *, beside: bool) -> Program:
    """A program of given signals with the rest as plain as it can be.

    Simple programs first: what a signal is worth is seen best where nothing else interferes.
    """
    made = tuple(replace(new_signal(choose, [name]), sign=1, transform="zscore") for name in names)
    return normalise(
        Program(
            signals=made,
            group=choose.text("group", GROUPS),
            sink=choose.number("sink", SINKS),
            recent=choose.number("recent", RECENTS),
            base=choose.base if beside else "",
            fraction=choose.number("fraction", FRACTIONS),
        )
    )


def new_program(choose: Chooser) -> Program:
    """A program from nothing; at least one of its signals depends on the query."""
    signals = [new_signal(choose, BY_QUERY)]
    for _ in range(choose.whole("count", (0, 1, 2))):
        taken = {s.name for s in signals}
        signals.append(new_signal(choose, [n for n in SIGNALS if n not in taken]))
    return normalise(
        Program(
            signals=tuple(signals),
            combine=choose.text("combine", COMBINES),
            group=choose.text("group", GROUPS),
            pool=choose.text("pool", POOLS),
            width=choose.whole("width", WIDTHS),
            spread=choose.whole("spread", SPREADS) if choose.rng.random() < 0.3 else 0,
            run=choose.whole("run", RUNS),
            sink=choose.number("sink", SINKS),
            recent=choose.number("recent", RECENTS),
            compete=choose.rng.random() < 0.3,
            floor=choose.number("floor", FLOORS),
            base=choose.base if choose.rng.random() < 0.3 else "",
            fraction=choose.number("fraction", FRACTIONS),
        )
    )


def add_signal(program: Program, choose: Chooser) -> Program | None:
    """One signal more."""
    if len(program.signals) >= MAX_SIGNALS:
        return None
    taken = {s.name for s in program.signals}
    new = new_signal(choose, [n for n in SIGNALS if n not in taken])
    signals = inserted(program, new, choose)
    if len(program.signals) == 1:
        # A single score has no transform that counts; beside another it needs one.
        signals = tuple(replace(s, transform="zscore") if s is not new else s for s in signals)
        return replace(program, signals=signals, combine=choose.text("combine", COMBINES))
    return replace(program, signals=signals)


def remove_signal(program: Program, choose: Chooser) -> Program | None:
    """One signal less; one that depends on the query stays."""
    left = moves.remove_signal(program, choose)
    kept = left is not None and any(s.name in BY_QUERY for s in left.signals)
    return left if kept else None


def replace_signal(program: Program, choose: Chooser) -> Program:
    """Another signal in the place of one; it keeps the weight."""
    old = choose.rng.choice(program.signals)
    others = [s for s in program.signals if s is not old]
    free = [n for n in SIGNALS if n not in {s.name for s in program.signals}]
    if not any(s.name in BY_QUERY for s in others):
        free = [n for n in free if n in BY_QUERY]
    return swap(program, old, replace(new_signal(choose, free), weight=old.weight))


def flip_sign(program: Program, choose: Chooser) -> Program | None:
    """Prefer what a signal would put last."""
    open_ = [s for s in program.signals if s.name in EITHER_SIGN]
    if not open_:
        return None
    old = choose.rng.choice(open_)
    return swap(program, old, replace(old, sign=-old.sign))


def change_group(program: Program, choose: Chooser) -> Program:
    """Another way to serve the query heads of a KV head."""
    return replace(program, group=str(choose.other("group", GROUPS, program.group)))


def change_grain(program: Program, choose: Chooser) -> Program:
    """Other runs, or another spread."""
    if choose.rng.random() < 0.5:
        return replace(program, run=int(choose.other("run", RUNS, program.run)))
    return replace(program, spread=int(choose.other("spread", SPREADS, program.spread)))


def change_window(program: Program, choose: Chooser) -> Program:
    """Another share of sinks or of recent entries."""
    if choose.rng.random() < 0.5:
        return replace(program, sink=float(choose.other("sink", SINKS, program.sink)))
    return replace(program, recent=float(choose.other("recent", RECENTS, program.recent)))


def change_scope(program: Program, choose: Chooser) -> Program:
    """Let the heads of a layer compete, or not."""
    return replace(program, compete=not program.compete, floor=choose.number("floor", FLOORS))


def reserve_share(program: Program, choose: Chooser) -> Program | None:
    """A share of the budget for the selector that the search started from, another, or none."""
    base = program.base or choose.base
    if not base:
        return None
    if program.base and choose.rng.random() < 0.3:
        return replace(program, base="")
    current = program.fraction if program.base else 0.0
    fraction = float(choose.other("fraction", FRACTIONS, current))
    return replace(program, base=base, fraction=fraction)


def cross(program: Program, partner: Program, choose: Chooser) -> Program:
    """Signals drawn from both, and each further part from one or the other."""
    pool = list({s.name: s for s in (*program.signals, *partner.signals)}.values())
    number = choose.rng.randint(1, min(MAX_SIGNALS, len(pool)))
    signals = tuple(choose.rng.sample(pool, number))
    if not any(s.name in BY_QUERY for s in signals):
        signals = (*signals[1:], next(s for s in pool if s.name in BY_QUERY))
    one, two, three = (choose.rng.choice((program, partner)) for _ in range(3))
    return replace(
        program,
        signals=signals,
        combine=one.combine,
        group=one.group,
        pool=two.pool,
        width=two.width,
        spread=two.spread,
        run=two.run,
        sink=three.sink,
        recent=three.recent,
        compete=three.compete,
        floor=three.floor,
        base=one.base,
        fraction=one.fraction,
    )


#: The moves by name. ``cross`` needs a partner and is added by the proposer.
MOVES: dict[str, Callable[[Program, Chooser], Program | None]] = {
    "add a signal": add_signal,
    "remove a signal": remove_signal,
    "replace a signal": replace_signal,
    "change an option": _SHARED.change_option,
    "flip a sign": flip_sign,
    "change a transform": _SHARED.change_transform,
    "change a weight": _SHARED.change_weight,
    "change the combination": _SHARED.change_combination,
    "change the group": change_group,
    "change the pooling": _SHARED.change_pool,
    "change the grain": change_grain,
    "change the windows": change_window,
    "let heads compete": change_scope,
    "reserve a share for the start": reserve_share,
}
