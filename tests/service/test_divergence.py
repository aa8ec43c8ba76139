"""The arithmetic alone; what is made of it is tested in test_sessions.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.chain import pack
from stoker.service.divergence import PROBE, PROBE_GAP, is_resent, shared_bytes

IDS = st.lists(st.integers(0, 3), max_size=60)


@given(IDS, IDS, IDS)
def test_the_shared_start_is_whole_ids_and_as_long_as_can_be(start: list[int], a: list[int], b: list[int]) -> None:
    old, new = start + a, start + b
    shared = shared_bytes(pack(old), pack(new)) // 4
    assert old[:shared] == new[:shared]
    assert shared >= len(start)
    assert shared in (len(old), len(new)) or old[shared] != new[shared]


def test_old_words_are_found_only_at_whole_ids() -> None:
    old = pack([0x01020304] * 8 + list(range(PROBE)) + [9] * PROBE_GAP)
    probe = old[8 * 4 : (8 + PROBE) * 4]
    assert is_resent(old, pack([7] * 50) + probe, 0)
    assert not is_resent(old, pack([7] * 50) + b"\0" + probe + b"\0\0\0", 0)
    assert is_resent(old, pack([7] * 50) + b"\0" + probe + b"\0\0\0" + probe, 0)
    assert not is_resent(old, pack([7] * 50), 0)
