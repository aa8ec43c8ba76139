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
    """`deaths` since it last got on, `seen` in all. While it starts `alone`, a death is its fault and nobody else's.
    `output` tokens were sent, of these `since` before the last death."""

    deaths: int = 0
    seen: int = 0
    alone: bool = False
    guilty: bool = False
    output: int = 0
    since: int = 0

    def progressed(self, output: int) -> None:
        """It has so many tokens of output now."""
        self.output = output
        if self.alone:
            self.alone, self.deaths = False, 1
        elif self.deaths and output - self.since >= CLEARED_TOKENS:
            self.deaths = 0


def died(running: Iterable[Suspect]) -> None:
    """An engine died with these. Sets `guilty` of those that are not to be tried again."""
    there = list(running)
    blamed = [suspect for suspect in there if suspect.alone] or there
    before = [suspect for suspect in blamed if suspect.deaths]
    for suspect in there:
        suspect.seen += 1
        suspect.since = suspect.output
        suspect.guilty = suspect.guilty or suspect.seen >= MOST_DEATHS
    for suspect in blamed:
        suspect.deaths += 1
        if suspect.alone or (suspect.deaths >= 2 and before == [suspect]):
            suspect.guilty = True
