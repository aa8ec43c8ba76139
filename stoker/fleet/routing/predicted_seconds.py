"""The default policy: go where this request costs the least, in seconds.

    wait                uncached tokens ahead / prefill rate, or until a slot is free (`load.py`)
  + A x recomputation   uncached tokens of this prompt / prefill rate. A is about 4: what is computed again also delays
                        those behind and evicts what others need. A = 1 is best for this request and collapses under
                        pressure: a moved session is a second copy, which evicts, which moves more sessions
  + KV pressure         P u / (1 - u), u the part of the KV pool that running sequences hold; 0 where it is not told
  + decode slowdown     P k / (slots - k), k requests in flight
  + transfer            to a replica of another zone

All in seconds, P = 0.15 s. Where a replica's rate is unknown the fleet's mean stands in, where none is known a nominal
one. Where the view of the session's last replica is not exact, the binding speaks for the cache: its whole
context counts as there.

Known flaws: the rate does not depend on the length of the context, though attention does; a cold replica is used late,
when the queues of warm ones have grown to A times the prefill; output lengths are not predicted.
"""

from __future__ import annotations

from stoker.fleet.routing.policy import Ask, Choice, first_by_rank
from stoker.fleet.routing.words import IndexState, Reason

PRESSURE_SECONDS = 0.15
FULL = 0.98  # pressure stops growing here: a full pool is slow, not unusable
TIE_SECONDS = 0.001
TIE_SHARE = 0.01  # differences below this are noise of the measured rates, and must not send everything to one replica


class PredictedSeconds:
    def __init__(self, weight: float) -> None:
        self._weight = weight

    def choose(self, ask: Ask) -> Choice:
        request, bound = ask.request, ask.bound
        scores: list[float] = []
        trusted = None  # position of the binding, where it has a say
        matched = list(ask.matched)
        for at, replica in enumerate(ask.replicas):
            if bound is not None and replica.info.name == bound.replica and replica.state is not IndexState.EXACT:
                trusted = at
                matched[at] = max(matched[at], min(bound.tokens, request.tokens))
            load, rate = replica.load, replica.load.rate or ask.rate
            running = min(load.inflight, load.slots - 1)
            used = min(load.kv, FULL)
            scores.append(
                load.wait(request.lane, ask.now, rate)
                + self._weight * (request.tokens - matched[at]) / rate
                + PRESSURE_SECONDS * (used / (1.0 - used) + running / (load.slots - running))
                + replica.transfer
            )
        best = min(scores)
        first = scores.index(best)
        limit = best + max(TIE_SECONDS, TIE_SHARE * best)
        equal = [at for at, score in enumerate(scores) if score <= limit and matched[at] >= matched[first]]
        chosen = trusted if trusted in equal else first_by_rank(ask, equal)
        return Choice(chosen, self._reason(ask, chosen, chosen == trusted, len(equal) > 1))

    @staticmethod
    def _reason(ask: Ask, chosen: int, trusted: bool, tie: bool) -> Reason:
        if trusted:
            return Reason.BOUND
        if ask.bound is not None and ask.bound.replica != ask.replicas[chosen].info.name:
            return Reason.MOVED
        if ask.matched[chosen] and ask.matched[chosen] > min(ask.matched):
            return Reason.PREFIX
        return Reason.TIE if tie else Reason.LOAD
