from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.service.stop import StopMatcher

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: output ends where the first stop string is complete; of several, the longest is taken off."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def split(text: str, borders: list[int]) -> list[str]:
    edges = [0, *sorted({border % (len(text) + 1) for border in borders}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(TEXT, STOPS, st.lists(st.integers(0, 100), max_size=20))
def test_any_split_gives_the_text_cut_as_a_whole(text, stops, borders):
    matcher = StopMatcher(stops)
    out, stopped = "", None
    for piece in split(text, borders):
        released, stopped = matcher.push(piece)
        out += released
        if stopped:
            break
    if not stopped:
        out += matcher.finish()
    assert (out, stopped) == cut(text, stops)


@given(TEXT, STOPS)
def test_only_what_could_begin_a_stop_is_held_back(text, stops):
    matcher = StopMatcher(stops)
    sent = ""
    for position, char in enumerate(text):
        released, stopped = matcher.push(char)
        sent += released
        if stopped:
            return
        seen = text[: position + 1]
        assert seen.startswith(sent)
        held = seen[len(sent) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_without_stops_nothing_is_touched():
    matcher = StopMatcher(("",))
    assert matcher.push("abc") == ("abc", None)
    assert matcher.finish() == ""


def test_a_new_text_knows_nothing_of_the_one_before():
    matcher = StopMatcher(("abc",))
    assert matcher.push("ab") == ("", None)
    assert matcher.finish() == "ab"
    assert matcher.push("cab") == ("c", None)


def test_long_stop_strings_cost_no_more_per_character():
    """The pattern that makes naive search quadratic."""
    matcher = StopMatcher(["a" * 1000 + "b"])
    out = "".join(matcher.push("a")[0] for _ in range(20_000))
    assert out == "a" * 19_000
    assert matcher.push("b") == ("", "a" * 1000 + "b")
