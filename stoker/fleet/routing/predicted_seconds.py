"""The default policy: go where this request costs the fleet the least, in seconds.

    wait                uncached tokens ahead / prefill rate, or until a slot is free (`load.py`)
  + A x recomputation   uncached tokens of this prompt / prefill rate
  + E x recomputation   E = exp(-age / reuse): what is pushed out for it, if the cache there is full, is computed again
  + KV pressure         P u / (1 - u), u the part of the KV pool that running sequences hold
  + decode slowdown     P k / (slots - k), k requests in flight
  + transfer            to a replica of another zone

All in seconds, P = 0.15 s. A = weight / (1 - busy), at most 16: a second of prefill also delays those who come while it
runs, and in a queue that is `busy` of the time by 1 / (1 - busy) seconds in all. With A = 1 each request does what is
best for itself, and under load all lose: a moved session is a second copy, which evicts, which moves more sessions.
`age` is the time since that was used last which would be pushed out first, `reuse` the mean time between two uses of a
prefix: what was not used for long will hardly be asked for again.

Where a replica's rate is unknown the fleet's mean stands in, where none is known a nominal one. KV use that is not told
counts as none. Where the view of the session's last replica is not exact, the binding speaks for the cache: its whole
context counts as there.

Known flaws: the rate does not depend on the length of the context, though attention does; `busy` counts prefill only;
a cold replica is used late while the fleet is busy; output lengths are not predicted.
"""

from __future__ import annotations

import math

from stoker.fleet.routing.policy import Ask, Choice, first_by_rank
from stoker.fleet.routing.words import IndexState, Reason

PRESSURE_SECONDS = 0.15
MOST_BUSY, MOST_WEIGHT = 0.99, 16.0
FULL = 0.98  # pressure stops growing here: a full pool is slow, not unusable
TIE_SECONDS = 0.001
TIE_SHARE = 0.01  # differences below this are noise of the measured rates, and must not send everything to one replica


class PredictedSeconds:
    """`weight` is A on an idle fleet."""

    def __init__(self, weight: float) -> None:
        self._weight = weight

    def choose(self, ask: Ask) -> Choice:
        request, bound = ask.request, ask.bound
        weight = min(self._weight / (1.0 - min(ask.busy, MOST_BUSY)), MOST_WEIGHT)
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
            fresh = request.tokens - matched[at]
            eldest = replica.view.eldest(fresh // replica.info.block_tokens)
            evicted = math.exp((eldest - ask.now) / ask.reuse) if eldest is not None else 0.0
            scores.append(
                load.wait(request.lane, ask.now, rate)
                + (weight + evicted) * fresh / rate
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
