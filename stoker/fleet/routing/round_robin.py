"""In turn, whatever a replica has to do and has cached. The weakest opponent; for comparison and for stateless use.

Flaw: an agent's next turn meets its own context once in N times.
"""

from __future__ import annotations

from stoker.fleet.routing.policy import Ask, Choice
from stoker.fleet.routing.words import Reason


class RoundRobin:
    def __init__(self) -> None:
        self._last = -1

    def choose(self, ask: Ask) -> Choice:
        numbers = [replica.number for replica in ask.replicas]
        self._last = min((n for n in numbers if n > self._last), default=min(numbers))
        return Choice(numbers.index(self._last), Reason.TURN)
