"""The words of routing: what is asked, what is answered, and why.

Owns the messages between the pool and the router. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from stoker.types.lane import Lane


class Reason(StrEnum):
    """Why a replica was chosen. A metric label: the set is closed and names nobody."""

    PREFIX = "prefix"  # cheapest, and it holds a part of the prompt
    LOAD = "load"  # cheapest; no part of the prompt decided
    TIE = "tie"  # as good as others: the first of them in the rendezvous order of (tenant, session)
    BOUND = "bound"  # where the session was before; its cache cannot be seen exactly
    MOVED = "moved"  # the session was elsewhere, and another replica is cheaper even with the recomputation
    AWAY = "away"  # the session was elsewhere, and that replica may not take it now
    ONLY = "only"  # no other replica may take it
    TURN = "turn"  # round robin


class IndexState(StrEnum):
    """How well the router knows what a replica has cached."""

    EXACT = "exact"  # fed at dispatch, corrected by the engine's events, none of them missed
    DEGRADED = "degraded"  # events were missed, or the snapshot has not come yet
    ABSENT = "absent"  # the replica sends no events: the view is what the router itself has sent there


class Denial(StrEnum):
    """Why no replica takes a request."""

    NONE = "none"  # no replica at all
    ZONE = "zone"  # none in the zone that the request may not leave
    EXCLUDED = "excluded"  # all that could have taken it were excluded: tried already, or down
    DRAINING = "draining"  # all that are left take no new sessions
    WORKING_SET = "working_set"  # a new session would push others' contexts out of the caches


class NoReplica(Exception):  # noqa: N818 - it is an answer
    """No replica may take the request: `denial` says why. Nothing was changed."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(f"no replica may take the request: {denial.value}")
        self.denial = denial


class ReplicaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the router must know of a replica.

    capacity_tokens  KV capacity, as the engine itself reports it: a wrong one costs hits in both directions
    block_tokens     tokens of a logical block
    slots            sequences that run at the same time
    prefill_rate     uncached prompt tokens per second, until it is measured; 0 is unknown
    step_seconds     of a decode step, until it is measured; 0 is unknown
    """

    name: str
    zone: str = ""
    capacity_tokens: int
    block_tokens: int = 64
    slots: int = 64
    prefill_rate: float = 0.0
    step_seconds: float = 0.0


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt that looks for a replica.

    session  the client's conversation, None if it named none. Only ever read together with `tenant`
    zone     pinned there: never leaves it, not in a failover either. None: anywhere
    blocks   links of the prompt's full logical blocks, first to last. Not changed afterwards by anybody
    tokens   length of the prompt
    output   expected output tokens; 0 is unknown
    """

    id: str
    tenant: str
    session: str | None = None
    zone: str | None = None
    blocks: Sequence[bytes] = ()
    tokens: int
    output: int = 0
    lane: Lane = Lane.STANDARD


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request goes.

    matched  tokens of the prompt that the router believes to be cached there when its turn comes
    seconds  predicted time to first token
    bound    where the session was before, if it was anywhere
    """

    replica: str
    reason: Reason
    matched: int
    seconds: float
    bound: str | None = None


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of routing; one of them serves chat and agents alike.

    policy         name of a policy, see `routing/policies.py`
    weight         what a second of recomputation counts for on an idle fleet; it grows with load: 4 at 60 % busy, 16 at
                   most
    transfer       zone -> seconds that a request to it takes longer than one to the router's own
    sessions       bindings kept, least recently used first out
    session_idle   seconds after which a silent session's binding is forgotten
    live           seconds for which a session counts as live after its last prompt
    admit_wait     a new session is refused while it would wait for more than so many seconds and the contexts of live
                   sessions do not fit into the caches any more; 0 refuses none
    """

    policy: str = "predicted_seconds"
    weight: float = 1.5
    transfer: Mapping[str, float] = {}
    sessions: int = 100_000
    session_idle: float = 4 * 3600.0
    live: float = 300.0
    admit_wait: float = 60.0
