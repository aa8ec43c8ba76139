"""What a subscriber sees has no gaps, whatever was lost on the way to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.feed import PATIENCE, Feed
from stoker.types.wire import KVEvents, KVNews, KVSnapshot


def snapshot(seq: int, parts: int = 1) -> list[KVNews]:
    return [KVSnapshot(seq=seq, blocks=b"", first=part == 0, more=part < parts - 1) for part in range(parts)]


@given(st.lists(st.sampled_from(["event", "beat", "lose event", "forget", "lose part"]), max_size=60), st.data())
def test_what_is_passed_on_has_no_gap_and_a_loss_is_seen_at_the_next_beat(acts: list[str], data: st.DataObject) -> None:
    """An engine that keeps its numbers, and a way to it on which messages get lost."""
    feed, seq, asked = Feed(), 0, True
    wire: list[KVNews] = []
    seen: list[KVNews] = []
    feed.restart()
    for act in acts:
        if asked:
            wire += snapshot(seq, data.draw(st.integers(1, 3)))
            asked = False
        match act:
            case "event" | "lose event":
                seq += 1
                if act == "event":
                    wire.append(KVEvents(seq=seq))
            case "lose part" if wire:
                wire.pop(data.draw(st.integers(0, len(wire) - 1)))
            case "forget":
                wire.clear()
            case "beat":
                seen += [message for message in wire if feed.take(message)]
                wire.clear()
                if feed.behind(seq):
                    feed.restart()
                    asked = True
            case _:
                pass
    seen += [message for message in wire if feed.take(message)]
    at, parts = None, False
    for message in seen:
        if isinstance(message, KVSnapshot):
            assert message.first or parts, "a snapshot begins with its first part"
            at, parts = message.seq, message.more
        else:
            assert not parts
            assert at is not None
            assert message.seq == at + 1
            at = message.seq


def test_a_snapshot_that_does_not_come_is_asked_for_again() -> None:
    feed = Feed()
    feed.restart()
    assert [feed.behind(7) for _ in range(PATIENCE + 1)] == [False] * PATIENCE + [True]
    feed.restart()
    assert not feed.behind(7)
    for part in snapshot(7, 2):
        assert feed.take(part)
    assert not feed.behind(7)
    assert feed.behind(8)


def test_events_before_the_snapshot_are_not_for_the_reader() -> None:
    feed = Feed()
    feed.restart()
    assert not feed.take(KVEvents(seq=3))
    assert not feed.take(KVSnapshot(seq=3, blocks=b"", more=True)), "the end of a snapshot whose start was lost"
    assert feed.take(KVSnapshot(seq=3, blocks=b"", first=True))
    assert not feed.take(KVEvents(seq=5))
    assert feed.take(KVEvents(seq=4))
