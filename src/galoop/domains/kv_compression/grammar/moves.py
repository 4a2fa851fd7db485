"""How press programs are written and changed. Every function is pure given its chooser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from galoop.domains.kv_compression.grammar.tree import (
    BASE,
    COMBINES,
    DIVERSE_SOURCES,
    EITHER_SIGN,
    FLOORS,
    FRACTIONS,
    GRAINS,
    GUARDS,
    MAX_SIGNALS,
    POOLS,
    SCOPES,
    SIGNALS,
    SLOPES,
    TRANSFORMS,
    WEIGHTS,
    WIDTHS,
    Program,
    Signal,
    normalise,
)
from galoop.proposers.grammar.signals.moves import (
    Chooser,
    SignalMoves,
    inserted,
    remove_signal,
    swap,
)

_SHARED = SignalMoves(SIGNALS, TRANSFORMS, COMBINES, POOLS, WIDTHS, WEIGHTS)


def signal_names(choose: Chooser) -> list[str]:
    """The signals that can be used now."""
    return [name for name in SIGNALS if name != BASE or choose.base]


def new_signal(choose: Chooser, avoid: Sequence[str] = ()) -> Signal:
    """A signal with random options; one that is not in ``avoid`` where possible."""
    names = [n for n in signal_names(choose) if n not in avoid] or signal_names(choose)
    name = choose.text("signal", names)
    options = _SHARED.options(name, choose)
    odds = 0.5 if name in EITHER_SIGN else 0.1
    pool = choose.text("signal pool", POOLS) if choose.rng.random() < 0.5 else "none"
    return Signal(
        name,
        options,
        sign=-1 if choose.rng.random() < odds else 1,
        transform=choose.text("transform", TRANSFORMS),
        pool=pool,
        width=choose.whole("signal width", WIDTHS),
        weight=choose.number("weight", WEIGHTS),
    )


def plain_program(choose: Chooser, signals: Sequence[str]) -> Program:
    """A program of given signals with the rest as plain as it can be.

    Simple programs first: what a signal is worth is seen best where nothing else interferes.
    """
    made = tuple(
        replace(
            new_signal(choose, [n for n in signal_names(choose) if n != name]),
            sign=1,
            transform="zscore",
        )
        for name in signals
    )
    program = Program(
        signals=made,
        combine=choose.text("combine", COMBINES),
        fraction=0.5,
        first=choose.whole("first", GUARDS),
        last=choose.whole("last", GUARDS),
        scope=choose.text("scope", SCOPES),
        floor=choose.number("floor", FLOORS),
        base=choose.base,
    )
    return normalise(program)


def new_program(choose: Chooser) -> Program:
    """A program from nothing."""
    signals: list[Signal] = []
    for _ in range(choose.whole("count", (1, 2, 3))):
        signals.append(new_signal(choose, [s.name for s in signals]))
    program = Program(
        signals=tuple(signals),
        combine=choose.text("combine", COMBINES),
        fraction=choose.number("fraction", FRACTIONS),
        pool=choose.text("pool", POOLS),
        width=choose.whole("width", WIDTHS),
        first=choose.whole("first", GUARDS),
        last=choose.whole("last", GUARDS),
        base=choose.base,
    )
    return normalise(new_scope(new_grain(program, choose), choose))


def new_grain(program: Program, choose: Chooser) -> Program:
    """The same program at another grain: tokens, runs, chunks or a diverse choice."""
    grain = choose.text("grain", tuple(GRAINS))
    sizes = GRAINS[grain]
    size = float(choose.draw(f"grain {grain}", sizes)) if sizes else 0.0
    source = choose.text("diverse source", DIVERSE_SOURCES)
    return replace(program, grain=grain, grain_size=size, grain_source=source)


def new_scope(program: Program, choose: Chooser) -> Program:
    """The same program with another way to share the budget over heads and layers."""
    slope = choose.number("slope", SLOPES) if choose.rng.random() < 0.3 else 0.0
    return replace(
        program,
        scope=choose.text("scope", SCOPES),
        floor=choose.number("floor", FLOORS),
        slope=slope,
    )


def add_signal(program: Program, choose: Chooser) -> Program | None:
    """One signal more."""
    if len(program.signals) >= MAX_SIGNALS:
        return None
    new = new_signal(choose, [s.name for s in program.signals])
    signals = inserted(program, new, choose)
    combine = program.combine
    if len(program.signals) == 1:
        combine = choose.text("combine", COMBINES)
    return replace(program, signals=signals, combine=combine, base=program.base or choose.base)


def replace_signal(program: Program, choose: Chooser) -> Program:
    """Another signal in the place of one; it keeps the weight."""
    old = choose.rng.choice(program.signals)
    new = new_signal(choose, [s.name for s in program.signals])
    changed = swap(program, old, replace(new, weight=old.weight))
    return replace(changed, base=program.base or choose.base)


def flip_sign(program: Program, choose: Chooser) -> Program:
    """Keep what a signal would drop."""
    old = choose.rng.choice(program.signals)
    return swap(program, old, replace(old, sign=-old.sign))


def pool_signal(program: Program, choose: Chooser) -> Program:
    """Another pooling of one signal over its neighbours."""
    old = choose.rng.choice(program.signals)
    pool = choose.text("signal pool", POOLS)
    width = choose.whole("signal width", WIDTHS)
    return swap(program, old, replace(old, pool=pool, width=width))


def step_width(program: Program, choose: Chooser) -> Program | None:
    """The next larger or smaller width of the pooling."""
    if program.pool == "none":
        return None
    at = WIDTHS.index(program.width) + choose.rng.choice((-1, 1))
    if not 0 <= at < len(WIDTHS):
        return None
    return replace(program, width=WIDTHS[at])


def change_weight(program: Program, choose: Chooser) -> Program | None:
    """Another weight of one signal in a sum, or another share of the first stage."""
    if program.combine == "two_stage":
        fraction = choose.other("fraction", FRACTIONS, program.fraction)
        return replace(program, fraction=float(fraction))
    return _SHARED.change_weight(program, choose)


def reserve_share(program: Program, choose: Chooser) -> Program | None:
    """A share of the budget for the press that the search started from, the rest as before.

    Where it has a share already, another share. What a repair must not lose is mostly what that
    press kept.
    """
    base = program.base or choose.base
    others = tuple(s for s in program.signals if s.name != BASE)
    if not base or not others or len(others) >= MAX_SIGNALS:
        return None
    own = next((s for s in program.signals if s.name == BASE), None) or Signal(BASE)
    reserved = program.combine == "two_stage" and program.signals[0].name == BASE
    if reserved:
        fraction = choose.other("fraction", FRACTIONS, program.fraction)
    else:
        fraction = choose.number("fraction", FRACTIONS)
    signals = (replace(own, sign=1), *others)
    changed = replace(program, signals=signals, combine="two_stage", fraction=float(fraction))
    return replace(changed, base=base)


def change_grain(program: Program, choose: Chooser) -> Program:
    """Another grain of the choice."""
    return new_grain(program, choose)


def change_scope(program: Program, choose: Chooser) -> Program:
    """Another way to share the budget."""
    return new_scope(program, choose)


def change_guard(program: Program, choose: Chooser) -> Program:
    """Other guarded positions."""
    if choose.rng.random() < 0.5:
        return replace(program, first=int(choose.other("first", GUARDS, program.first)))
    return replace(program, last=int(choose.other("last", GUARDS, program.last)))


def cross(program: Program, partner: Program, choose: Chooser) -> Program:
    """Signals drawn from both, and each further part from one or the other."""
    pool = list(dict.fromkeys((*program.signals, *partner.signals)))
    number = choose.rng.randint(1, min(MAX_SIGNALS, len(pool)))
    signals = tuple(choose.rng.sample(pool, number))
    base = program.base or partner.base
    if program.base and partner.base and program.base != partner.base:
        signals = tuple(s for s in signals if s.name != BASE) or program.signals
        base = program.base
    one, two, three = (choose.rng.choice((program, partner)) for _ in range(3))
    return replace(
        program,
        signals=signals,
        base=base,
        combine=one.combine,
        fraction=one.fraction,
        pool=two.pool,
        width=two.width,
        grain=two.grain,
        grain_size=two.grain_size,
        grain_source=two.grain_source,
        first=three.first,
        last=three.last,
        scope=three.scope,
        floor=three.floor,
        slope=three.slope,
    )


#: The moves by name. ``cross`` needs a partner and is added by the proposer.
MOVES: dict[str, Callable[[Program, Chooser], Program | None]] = {
    "add a signal": add_signal,
    "remove a signal": remove_signal,
    "replace a signal": replace_signal,
    "change an option": _SHARED.change_option,
    "flip a sign": flip_sign,
    "change a transform": _SHARED.change_transform,
    "pool a signal": pool_signal,
    "pool the score": _SHARED.change_pool,
    "step the width": step_width,
    "change a weight": change_weight,
    "change the combination": _SHARED.change_combination,
    "reserve a share for the start": reserve_share,
    "change the grain": change_grain,
    "share the budget otherwise": change_scope,
    "change the guards": change_guard,
}
