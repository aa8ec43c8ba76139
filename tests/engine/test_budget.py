from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.budget import Demand, reserves, share
from stoker.types.lane import Lane

demands = st.lists(
    st.builds(lambda lane, tokens: Demand(lane, tokens, tokens == 1), st.sampled_from(list(Lane)), st.integers(1, 99)),
    max_size=12,
)
shares = st.tuples(st.floats(0, 1), st.floats(0, 1))


@given(st.integers(1, 200), demands, shares)
def test_the_rules(budget: int, wanted: list[Demand], parts: tuple[float, float]) -> None:
    reserve = reserves(budget, parts)
    granted = share(budget, wanted, reserve)
    assert all(0 <= got <= demand.tokens for got, demand in zip(granted, wanted, strict=True))
    assert sum(granted) == min(budget, sum(demand.tokens for demand in wanted)), "nothing is wasted"
    above = 0
    for lane in Lane:
        mine = [(got, demand) for got, demand in zip(granted, wanted, strict=True) if demand.lane == lane]
        got, asked = sum(g for g, _ in mine), sum(d.tokens for _, d in mine)
        below = sum(
            min(sum(d.tokens for d in wanted if d.lane == lower), max(reserve[lower], budget // 4))
            for lower in Lane
            if lower > lane
        )
        assert got >= min(asked, reserve[lane]), "a lane gets its reserve"
        assert got >= min(asked, budget - above - below), "a lane waits for no more than the lower ones are owed"
        above += got
        prefills = [(g, d) for g, d in mine if not d.decode]
        left = got - sum(g for g, d in mine if d.decode)
        if any(g < d.tokens for g, d in mine if d.decode):
            assert left == 0, "decodes go first"
        if prefills:
            assert prefills[0][0] >= min(prefills[0][1].tokens, left - left // 2), "half for the oldest"
            for g, d in prefills[1:]:
                for g2, d2 in prefills[1:]:
                    if d.tokens < d2.tokens and g2 > 0:
                        assert g == d.tokens, "the shortest first"


def test_alone_a_prefill_gets_everything() -> None:
    assert share(100, [Demand(Lane.BATCH, 500, False)], reserves(100, (0.1, 0.02))) == [100]


def test_reserves_are_shares_but_never_nothing_and_never_half() -> None:
    assert reserves(2048, (0.1, 0.02)) == {Lane.INTERACTIVE: 0, Lane.STANDARD: 205, Lane.BATCH: 41}
    assert reserves(4, (0.1, 0.02)) == {Lane.INTERACTIVE: 0, Lane.STANDARD: 1, Lane.BATCH: 1}
    assert reserves(100, (0.9, 0.0)) == {Lane.INTERACTIVE: 0, Lane.STANDARD: 25, Lane.BATCH: 0}
