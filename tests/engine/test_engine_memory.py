from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.memory import STATES_PER_SEQUENCE, divide


def test_without_states_all_is_blocks() -> None:
    assert divide(8 * 16 * 10 + 127, 8, 0, block_size=16, max_running=64) == (10, 0)
    assert divide(8 * 16 * 10, 8, 0, block_size=16, max_running=64, states=9) == (10, 0)


def test_states_come_out_of_the_same_memory() -> None:
    assert divide(100_000, 10, 1000, block_size=5, max_running=4) == (84_000 // 50, 16)
    assert divide(100_000, 10, 1000, block_size=5, max_running=40) == (50_000 // 50, 50), "at most half"
    assert divide(100_000, 10, 1000, block_size=5, max_running=40, states=90) == (10_000 // 50, 90)


@given(st.integers(0, 10**9), st.integers(1, 10**5), st.integers(1, 10**8), st.integers(1, 64), st.integers(1, 100))
def test_it_never_promises_more_than_there_is(budget: int, token: int, state: int, block: int, running: int) -> None:
    blocks, states = divide(budget, token, state, block_size=block, max_running=running)
    assert 1 <= states <= STATES_PER_SEQUENCE * running
    assert blocks == 0 or blocks * block * token + states * state <= budget


def test_what_holds_nothing_is_no_block() -> None:
    assert divide(10, 8, 100, block_size=16, max_running=1) == (0, 1)
    assert divide(0, 8, 0, block_size=16, max_running=1) == (0, 0)
