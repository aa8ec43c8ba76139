"""Who goes first. One enum from gateway to engine."""

from __future__ import annotations

from enum import IntEnum


class Lane(IntEnum):
    """Strict order: a lower value is served first. A client chooses it with `service_tier`."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2
