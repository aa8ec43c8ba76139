"""The fewest prompt tokens in flight, ties by rendezvous rank: the best that can be done without knowing any cache.

Unit: tokens of all prompts sent and not ended. No signal can be missing, it is the router's own count.
Flaw: cached tokens count like others, and every turn of a session lands anywhere.
"""

from __future__ import annotations

from stoker.fleet.routing.policy import Ask, Choice, first_by_rank
from stoker.fleet.routing.words import Reason


class LeastTokens:
    def choose(self, ask: Ask) -> Choice:
        tokens = [replica.load.tokens for replica in ask.replicas]
        least = min(tokens)
        equal = [at for at, count in enumerate(tokens) if count == least]
        return Choice(first_by_rank(ask, equal), Reason.TIE if len(equal) > 1 else Reason.LOAD)
