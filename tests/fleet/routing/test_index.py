"""The fleet-wide index against a walk of every replica's set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.fleet.routing.index import PrefixIndex


def chain(length: int, root: int = 0) -> list[bytes]:
    return [(root << 32 | at).to_bytes(16) for at in range(length)]


@given(length=st.integers(0, 70), depths=st.lists(st.integers(0, 70), max_size=9), among=st.integers(0, 511))
def test_depths_are_the_longest_resident_prefixes(length: int, depths: list[int], among: int) -> None:
    index, blocks = PrefixIndex(), chain(80)
    for number, depth in enumerate(depths):
        index.add(blocks[:depth], 1 << number)
    expected = {
        number: min(depth, length) for number, depth in enumerate(depths) if among >> number & 1 and min(depth, length)
    }
    assert index.depths(blocks[:length], among) == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=60))
def test_no_entry_outlives_its_last_holder(changes: list[tuple[int, int, bool]]) -> None:
    index, blocks = PrefixIndex(), chain(6)
    held: set[tuple[int, int]] = set()
    for block, number, add in changes:
        if add:
            index.add([blocks[block]], 1 << number)
            held.add((block, number))
        else:
            index.discard(blocks[block], 1 << number)
            held.discard((block, number))
        assert set(index.holders) == {blocks[block] for block, _ in held}


def test_an_answer_asks_for_few_blocks() -> None:
    """Bisection, whatever the number of replicas: a walk over blocks x replicas is slow."""

    class Counted(dict[bytes, int]):
        asked = 0

        def get(self, key: bytes, default: int = 0) -> int:  # type: ignore[override]
            self.asked += 1
            return super().get(key, default)

    index, blocks = PrefixIndex(), chain(3125)
    index.holders = counted = Counted()
    for number in range(64):
        index.add(blocks[: 3000 if number % 2 else 47 * number], 1 << number)
    counted.asked = 0
    assert len(index.depths(blocks, (1 << 64) - 1)) == 63
    assert counted.asked < 33 * 15
