"""The bridge: exact, additive, free of order; against a saving computed by hand and a published one."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.ledger.bridge import FACTORS, Bridge, BridgeError, Cell, Side, bridge, shapley
from stoker.ledger.example import cloudflare_77
from stoker.ledger.prices import Rates
from stoker.types.lane import Lane
from stoker.types.usage import Usage

CHEAP = Rates(
    input=600_000_000,
    cached_input=100_000_000,
    output=3_000_000_000,
    reasoning=3_000_000_000,
    batch=Fraction(1, 2),
)
DEAR = Rates(
    input=3_000_000_000,
    cached_input=300_000_000,
    output=15_000_000_000,
    reasoning=15_000_000_000,
    batch=Fraction(1, 2),
)


def shares(result: Bridge) -> dict[str, float]:
    return {factor.name: factor.share for factor in result.factors}


def test_a_saving_worked_out_by_hand() -> None:
    """95 % input, of it 85 % cached; 70 % of the tokens in batches at half price; 15 % less idle capacity."""
    cells = [
        Cell(
            lane=lane,
            usage=Usage(input_uncached=14_250_000 * part, input_cached=80_750_000 * part, output_text=5_000_000 * part),
            rates=CHEAP,
            baseline=DEAR,
        )
        for lane, part in ((Lane.BATCH, 7), (Lane.STANDARD, 3))
    ]
    result = bridge(cells, Side(), Side(hit=Fraction(0), batch=False, utilisation=Fraction("0.85")))
    assert result.saving_share == pytest.approx(1 - (0.1425 * 0.6 + 0.8075 * 0.1 + 0.05 * 3) * 0.65 * 0.85 / 3.6)
    assert sum(shares(result).values()) == pytest.approx(result.saving_share)
    assert shares(result)["mix"] == shares(result)["waste"] == shares(result)["amortisation"] == 0
    model = next(factor for factor in result.factors if factor.name == "model")
    assert model.low < model.share < model.high
    assert model.high == pytest.approx(0.8)  # as the first step of a waterfall


def test_shapley_is_the_mean_over_all_orders() -> None:
    values = {subset: Fraction(hash(tuple(sorted(subset))) % 97) for size in range(4) for subset in subsets(size)}
    found = {name: (mean, low, high) for name, mean, low, high in shapley("abc", values.__getitem__)}
    for name in "abc":
        steps: list[Fraction] = []
        for order in permutations("abc"):
            before = frozenset(order[: order.index(name)])
            steps.append(values[before] - values[before | {name}])
        assert found[name] == (sum(steps) / len(steps), min(steps), max(steps))


def subsets(size: int) -> list[frozenset[str]]:
    return [frozenset(order[:size]) for order in permutations("abc")]


share = st.fractions(0, 1, max_denominator=50)
rates = st.builds(
    Rates,
    input=st.integers(1, 10**10),
    cached_input=st.integers(0, 10**9),
    output=st.integers(0, 10**11),
    reasoning=st.integers(0, 10**11),
    batch=share,
)
cells = st.lists(
    st.builds(
        Cell,
        lane=st.sampled_from(Lane),
        usage=st.builds(
            Usage,
            input_uncached=st.integers(1, 10**12),
            input_cached=st.integers(0, 10**12),
            output_text=st.integers(0, 10**10),
            output_reasoning=st.integers(0, 10**10),
        ),
        rates=rates,
        baseline=rates,
    ),
    min_size=1,
    max_size=4,
)
sides = st.builds(
    Side,
    hit=st.none() | st.fractions(0, Fraction(9, 10), max_denominator=50),
    output_share=st.none() | share.filter(lambda value: value < 1),
    batch=st.just(False),
    utilisation=st.fractions(Fraction(1, 10), 1, max_denominator=50),
    amortisation=share,
    waste=share,
)


@given(cells, sides, sides)
def test_factors_add_up_and_swapping_the_sides_turns_them_round(these: list[Cell], one: Side, other: Side) -> None:
    there = bridge(these, one, other)
    assert sum(shares(there).values()) == pytest.approx(there.saving_share, abs=1e-9)
    assert all(factor.low - 1e-9 <= factor.share <= factor.high + 1e-9 for factor in there.factors)
    swapped = [Cell(lane=c.lane, usage=c.usage, rates=c.baseline, baseline=c.rates) for c in these]
    back = bridge(swapped, other, one)
    for name in FACTORS:
        assert shares(there)[name] * there.baseline == pytest.approx(
            -shares(back)[name] * back.baseline, rel=1e-9, abs=1e-6 * there.baseline
        )


@given(cells)
def test_the_actual_side_costs_what_its_rows_cost(these: list[Cell]) -> None:
    these = [msgspec.structs.replace(cell, baseline=CHEAP) for cell in these]
    result = bridge(these, Side(), Side())
    rows = sum(cell.rates.cost(cell.usage, cell.lane) for cell in these)
    assert result.cost == pytest.approx(rows / 1e9, abs=len(these) / 1e9)


def test_the_published_account() -> None:
    result = cloudflare_77()
    assert result.per_million == pytest.approx(0.216, abs=0.0005)
    assert result.saving_share == pytest.approx(0.77, abs=0.001)
    assert result.baseline == pytest.approx(2.4e6)
    assert result.tokens == 7 * 10**9 * 365
    worse = cloudflare_77(hit=Fraction("0.6"))
    assert worse.per_million == pytest.approx(0.327, abs=0.0005)
    assert worse.saving_share == pytest.approx(0.65, abs=0.005)
    assert shares(worse)["cache"] < 0
    assert cloudflare_77(output_share=Fraction("0.03")).per_million > result.per_million


def test_nothing_to_explain() -> None:
    free = Rates(input=0, cached_input=0, output=0, reasoning=0)
    with pytest.raises(BridgeError, match="no tokens"):
        bridge([], Side(), Side())
    with pytest.raises(BridgeError, match="costs nothing"):
        bridge([Cell(lane=Lane.BATCH, usage=Usage(input_uncached=1), rates=CHEAP, baseline=free)], Side(), Side())
    for wrong in ({"hit": Fraction(2)}, {"output_share": Fraction(-1)}, {"utilisation": Fraction(0)}):
        with pytest.raises(BridgeError, match="must be"):
            Side(**wrong)  # type: ignore[arg-type]
