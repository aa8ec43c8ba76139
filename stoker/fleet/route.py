"""What routing must know of a request and the engine need not: who asks, in which session, where it may go."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Made by the service, read by the pool.

    tenant   from the caller's key
    session  the client's conversation; only ever read together with `tenant`
    zone     pinned there: the request never leaves it, not in a failover either
    blocks   links of the prompt's full logical blocks, first to last; empty where they are not known
    """

    tenant: str
    session: str | None = None
    zone: str | None = None
    blocks: Sequence[bytes] = ()
