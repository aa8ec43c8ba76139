"""One request at one replica, as spans: where it was routed and why, and how long it queued, was read and was written.

The engine keeps no spans: it reports two durations with its first token, and this side knows when that came.
"""

from __future__ import annotations

import time

from stoker.fleet.router import Decision
from stoker.obs.traces import Span, Traces
from stoker.types.wire import Progress


class Attempt:
    """`span` is this attempt's own; `heard` what the engine says, in order; `end` however it ended, once or more."""

    def __init__(self, traces: Traces, parent: str, decision: Decision) -> None:
        self._traces = traces
        self.span: Span = traces.span(
            "route",
            parent,
            {
                "stoker.replica": decision.replica,
                "stoker.route.reason": decision.reason.value,
                "stoker.route.matched_tokens": decision.matched,
                "stoker.route.predicted_seconds": decision.seconds,
            },
        )
        self._first: float | None = None

    def heard(self, progress: Progress) -> None:
        if self._first is not None or not self._traces.on:
            return
        self._first = now = time.time()
        began = now - progress.prefill
        self._part("queued", began - progress.queued, began)
        self._part("prefill", began, now, progress.cached)

    def end(self, error: str = "") -> None:
        first, self._first = self._first, None
        if first is not None:
            self._part("decode", first, time.time())
        self.span.end(error)

    def _part(self, name: str, since: float, until: float, cached: int | None = None) -> None:
        attributes = None if cached is None else {"gen_ai.usage.cache_read.input_tokens": cached}
        self._traces.span(name, self.span.traceparent, attributes, since=since).end(at=until)
