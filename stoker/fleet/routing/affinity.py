"""The rendezvous order of (tenant, session), the first whose load is bounded: consistent hashing with bounded loads
(Mirrokni et al., SODA 2018).

Unit: requests in flight, at most 1.25 times the mean of the replicas asked, and one more. For backends that tell
nothing at all. Flaws: does not see what is cached, a long session weighs as much as a short one, and a replica that
is full for a moment loses the session's next turn.
"""

from __future__ import annotations

from stoker.fleet.routing.policy import Ask, Choice, key_hash, rank
from stoker.fleet.routing.words import Reason

BOUND = 1.25


class Affinity:
    def choose(self, ask: Ask) -> Choice:
        key = key_hash(ask.request)
        order = sorted(range(len(ask.replicas)), key=lambda at: -rank(key, ask.replicas[at].salt))
        limit = BOUND * (sum(replica.load.inflight for replica in ask.replicas) + 1) / len(ask.replicas) + 1
        for at in order:
            if ask.replicas[at].load.inflight < limit:
                return Choice(at, Reason.BOUND if at == order[0] else Reason.MOVED)
        return Choice(order[0], Reason.BOUND)
