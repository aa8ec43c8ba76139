"""Which request kills engines: those that were running when one died are suspects, and one that must be the cause is
refused, so that it does not take one replica after the other with it.

Pure. Two deaths are enough where nobody else can have been the cause of both. Where several requests saw the same two
deaths, each of them has its next start for itself: an engine that dies then was killed by it, and those that start well
are free again. A request that gets on does not stay a suspect, but one that saw many deaths in all is refused, so
nothing is tried for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CLEARED_TOKENS = 64  # of output since the last death: whatever it was, the request has passed the place
MOST_DEATHS = 6  # of one request, all in all


@dataclass(slots=True)
class Suspect:
    """`deaths` since it last got on, `seen` in all; `alone` while nobody else may be blamed for a death."""

    deaths: int = 0
    seen: int = 0
    alone: bool = False
    guilty: bool = False
    since: int = 0  # tokens of output at the last death


def died(running: Iterable[Suspect]) -> None:
    """An engine died with these. Sets `guilty` of those that are not to be tried again."""
    there = list(running)
    blamed = [suspect for suspect in there if suspect.alone] or there
    before = [suspect for suspect in blamed if suspect.deaths]
    for suspect in there:
        suspect.seen += 1
        suspect.guilty = suspect.guilty or suspect.seen >= MOST_DEATHS
    for suspect in blamed:
        suspect.deaths += 1
        if suspect.alone or (suspect.deaths >= 2 and before == [suspect]):
            suspect.guilty = True


def progressed(suspect: Suspect, output: int) -> None:
    """It has so many tokens of output now."""
    if suspect.deaths and output - suspect.since >= CLEARED_TOKENS:
        suspect.deaths = 0
