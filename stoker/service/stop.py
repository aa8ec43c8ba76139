"""Where output ends because of a stop string, whatever the borders of the pieces it arrives in."""

from __future__ import annotations

from collections.abc import Sequence


def _failure(pattern: str) -> list[int]:
    """Knuth-Morris-Pratt: for each prefix of `pattern`, its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    matched = 0
    for i in range(1, len(pattern)):
        while matched and pattern[i] != pattern[matched]:
            matched = table[matched - 1]
        if pattern[i] == pattern[matched]:
            matched += 1
        table[i] = matched
    return table


class StopMatcher:
    """Holds back only text that could still turn out to be the start of a stop string.

    Output ends at the first character that completes any stop string; if several end there, the longest counts.
    So the result depends on the text alone and never on how it was cut into pieces. One automaton per stop string
    keeps the cost per character constant, however long the strings are.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [(stop, _failure(stop)) for stop in stops if stop]
        self._firsts = frozenset(pattern[0] for pattern, _ in self._patterns)
        self._states = [0] * len(self._patterns)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """More output -> (what is now certain to be before any stop string, the stop string that is complete)."""
        states = self._states
        if not any(states) and self._firsts.isdisjoint(text):
            return text, None
        for position, char in enumerate(text):
            found = ""
            for which, (pattern, failure) in enumerate(self._patterns):
                state = states[which]
                while state and pattern[state] != char:
                    state = failure[state - 1]
                if pattern[state] == char:
                    state += 1
                states[which] = state
                if state == len(pattern) > len(found):
                    found = pattern
            if found:
                seen = self._held + text[: position + 1]
                self._held = ""
                return seen[: len(seen) - len(found)], found
        seen = self._held + text
        hold = max(states)
        self._held = seen[len(seen) - hold :]
        return seen[: len(seen) - hold], None

    def finish(self) -> str:
        """The text ended by itself: what was held back belongs to it. What is pushed later is another text."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._patterns)
        return held
