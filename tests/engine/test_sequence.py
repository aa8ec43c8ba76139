from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.chain import Chain, ChainRoot
from stoker.engine.sequence import Sequence
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams


def sequence(length: int, page: int = 4) -> Sequence:
    return Sequence(
        number=0,
        request="r",
        token_ids=list(range(length)),
        sampling=SamplingParams(),
        lane=Lane.STANDARD,
        chain=Chain(ChainRoot(fingerprint="m"), b"k", page),
        max_output=9,
    )


@given(st.integers(1, 40), st.integers(1, 9))
def test_the_prompt_is_never_matched_completely(length: int, page: int) -> None:
    seq = sequence(length, page)
    assert 0 < length - seq.matchable * page <= page


@given(st.integers(2, 40), st.lists(st.integers(1, 9), max_size=9), st.integers(0, 39))
def test_what_is_computed_again_is_told(length: int, chunks: list[int], found: int) -> None:
    seq = sequence(length)
    for chunk in chunks:
        if chunk <= seq.pending:
            assert seq.advance(computed=chunk) == 0
    reached = seq.computed
    seq.vacate()
    found = min(found, length - 1)
    seq.advance(found=found)
    assert (seq.cached, seq.computed) == (found, found)
    assert seq.advance(computed=length - found) == max(0, reached - found)


def test_counters_cannot_pass_each_other() -> None:
    with pytest.raises(AssertionError):
        sequence(3).advance(computed=4)
    with pytest.raises(AssertionError):
        sequence(3).advance(found=4)
    seq = sequence(3)
    seq.advance(computed=3, accepted=[7])
    assert (seq.computed, seq.known, seq.pending) == (3, 4, 1)


def test_vacating_gives_back_the_table_and_keeps_the_ids() -> None:
    seq = sequence(6)
    seq.blocks = [4, 2]
    seq.advance(computed=6, accepted=[9])
    assert seq.vacate() == [4, 2]
    assert (seq.blocks, seq.computed, seq.known, seq.reached) == ([], 0, 7, 6)
