"""The cost bridge: how much of a saving comes from which cause.

The same tokens are priced with any mixture of the actual side's and the baseline side's ways. A waterfall that changes
one after the other gives each cause what its place in the order makes of it: a cheaper model is worth 80 points if it
comes first and 17 if it comes last. Here each cause gets its Shapley value (Shapley, 1953): the mean over all orders,
exact, additive, the same whichever side is called the baseline. The least and the most over all orders are shown beside
it: where they are far apart, no single number is the truth.

Causes, and what each changes when it goes from the baseline's to the actual side's:
    model         the prices of input and output, and what a cached token costs beside a fresh one
    mix           the share of output among all tokens
    cache         the share of input that was found in the cache
    batch         whether batch work gets the batch factor
    utilisation   the share of paid capacity that did useful work (1 where tokens are bought, not machines)
    amortisation  what is paid beside the machines, per dollar of machine
    waste         tokens computed in vain, per useful token

Its own flaws: within a model and lane all requests count as alike; who would have sent how much at another price is not
asked. 2^7 valuations, each linear in the number of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import factorial

import msgspec

from stoker.ledger.prices import MILLION, NANO, Rates
from stoker.types.lane import Lane
from stoker.types.usage import Usage

FACTORS = ("model", "mix", "cache", "batch", "utilisation", "amortisation", "waste")
ONE = Fraction(1)


class BridgeError(ValueError):
    """There is nothing to explain; the message says why."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens of one model and lane in the time looked at, with both sides' rates for them."""

    lane: Lane
    usage: Usage
    rates: Rates
    baseline: Rates


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One way of doing the work. None: as the cells have it."""

    hit: Fraction | None = None
    output_share: Fraction | None = None
    batch: bool = True
    utilisation: Fraction = ONE
    amortisation: Fraction = Fraction(0)
    waste: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        for name in ("hit", "output_share"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise BridgeError(f"{name} is {float(share)}: it must be between 0 and 1")
        if not 0 < self.utilisation <= 1:
            raise BridgeError(f"utilisation is {float(self.utilisation)}: it must be above 0 and at most 1")
        if self.amortisation < 0 or self.waste < 0:
            raise BridgeError("amortisation and waste cannot be below 0")


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """A cause's part of the saving, as a share of the baseline's cost; `low` and `high` over all orders."""

    name: str
    share: float
    low: float
    high: float


class Bridge(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars. The factors' shares add up to `saving_share`; below 0 a cause makes it dearer."""

    tokens: int
    hit: float
    output_share: float
    cost: float
    baseline: float
    per_million: float
    baseline_per_million: float
    saving: float
    saving_share: float
    factors: list[Factor]


def bridge(cells: Sequence[Cell], actual: Side, baseline: Side) -> Bridge:
    """Raises BridgeError where there are no tokens or the baseline costs nothing."""
    tokens = sum(cell.usage.total for cell in cells)
    if tokens == 0:
        raise BridgeError("there are no tokens in the time looked at")

    def value(on: frozenset[str]) -> Fraction:
        return sum((_cost(cell, actual, baseline, on) for cell in cells), start=Fraction(0))

    before, after = value(frozenset()), value(frozenset(FACTORS))
    if before == 0:
        raise BridgeError("the baseline costs nothing: no saving can be a share of it")
    cached, read, written = _shares(cells, actual)
    return Bridge(
        tokens=tokens,
        hit=float(cached / read) if read else 0.0,
        output_share=float(written / tokens),
        cost=float(after / NANO),
        baseline=float(before / NANO),
        per_million=float(after / NANO / tokens * MILLION),
        baseline_per_million=float(before / NANO / tokens * MILLION),
        saving=float((before - after) / NANO),
        saving_share=float(1 - after / before),
        factors=[
            Factor(name=name, share=float(mean / before), low=float(low / before), high=float(high / before))
            for name, mean, low, high in shapley(FACTORS, value)
        ],
    )


def shapley(
    names: Sequence[str], value: Callable[[frozenset[str]], Fraction]
) -> Iterable[tuple[str, Fraction, Fraction, Fraction]]:
    """(name, mean, least, most) of what each name takes off `value` over all orders in which the names are added."""
    count = len(names)
    known = {
        subset: value(subset)
        for subset in (
            frozenset(name for at, name in enumerate(names) if number >> at & 1) for number in range(1 << count)
        )
    }
    for name in names:
        off = [(len(subset), before - known[subset | {name}]) for subset, before in known.items() if name not in subset]
        mean = sum(
            (Fraction(factorial(size) * factorial(count - size - 1), factorial(count)) * saved for size, saved in off),
            start=Fraction(0),
        )
        yield name, mean, min(saved for _, saved in off), max(saved for _, saved in off)


def _cost(cell: Cell, actual: Side, baseline: Side, on: frozenset[str]) -> Fraction:
    """Nano-dollars of a cell where the causes in `on` are the actual side's and the others the baseline's."""

    def side(factor: str) -> Side:
        return actual if factor in on else baseline

    rates = cell.rates if "model" in on else cell.baseline
    usage = cell.usage
    total = usage.total
    written = _written(usage, side("mix"))
    read = total - written
    cached = read * _hit(usage, side("cache"))
    reasoning = written * Fraction(usage.output_reasoning, usage.output) if usage.output else Fraction(0)
    whole = (
        (read - cached) * rates.input
        + cached * rates.cached_input
        + (written - reasoning) * rates.output
        + reasoning * rates.reasoning
    ) / MILLION
    if side("batch").batch:
        whole *= rates.factor(cell.lane)
    return whole * (1 + side("waste").waste) * (1 + side("amortisation").amortisation) / side("utilisation").utilisation


def _written(usage: Usage, side: Side) -> Fraction:
    return Fraction(usage.output) if side.output_share is None else usage.total * side.output_share


def _hit(usage: Usage, side: Side) -> Fraction:
    if side.hit is not None:
        return side.hit
    return Fraction(usage.input_cached, usage.input) if usage.input else Fraction(0)


def _shares(cells: Sequence[Cell], side: Side) -> tuple[Fraction, Fraction, Fraction]:
    """(cached, read, written) tokens of one side."""
    cached = read = written = Fraction(0)
    for cell in cells:
        output = _written(cell.usage, side)
        taken = cell.usage.total - output
        written += output
        read += taken
        cached += taken * _hit(cell.usage, side)
    return cached, read, written
