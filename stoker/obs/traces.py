"""Spans of requests for OpenTelemetry: off unless `[traces]` names a collector. Without content, tenants or sessions.

A span's place in the tree is its parent's `traceparent`, as W3C writes it: a text that crosses threads, processes and
hosts alike. Where nothing is recorded it is passed on as it came. The SDK is imported only where traces are on.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stoker import __version__
from stoker.types.errors import word_for

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as RecordedSpan

Attributes = Mapping[str, str | int | float | bool]

SHUTDOWN_SECONDS = 2.0  # for spans that have not been sent when the server ends
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent(header: str | None) -> str:
    """What a client sent as its `traceparent`, or "" where it is none."""
    return header if header and _TRACEPARENT.fullmatch(header) else ""


class Span:
    """A part of a request's way. Times are in seconds since the epoch; `end` counts once."""

    __slots__ = ("_recorded", "traceparent")

    def __init__(self, traceparent: str, recorded: RecordedSpan | None = None) -> None:
        self.traceparent = traceparent
        self._recorded = recorded

    def note(self, attributes: Attributes) -> None:
        if self._recorded is not None:
            self._recorded.set_attributes(attributes)

    @contextmanager
    def open(self, *, end: bool = True) -> Generator[Span]:
        """The block is the span; without `end` it only ends here if the block does not come to its end."""
        try:
            yield self
        except BaseException as error:
            self.end(word_for(error))
            raise
        if end:
            self.end()

    def end(self, error: str = "", *, at: float | None = None) -> None:
        """`error` is a word for what went wrong, never a message: those may quote content."""
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return
        if error:
            from opentelemetry.trace import Status, StatusCode

            recorded.set_attribute("error.type", error)
            recorded.set_status(Status(StatusCode.ERROR))
        recorded.end(end_time=_nanoseconds(at))


class Traces:
    """Makes spans, as roots of trees or below others. Without a `provider` they are nothing."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("stoker", __version__)

    @property
    def on(self) -> bool:
        return self._tracer is not None

    def span(
        self,
        name: str,
        parent: str = "",
        attributes: Attributes | None = None,
        *,
        server: bool = False,
        since: float | None = None,
    ) -> Span:
        """Begins now or at `since`. `server`: it answers somebody outside."""
        if self._tracer is None:
            return Span(parent)
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        recorded = self._tracer.start_span(
            name,
            context=TraceContextTextMapPropagator().extract({"traceparent": parent}),
            kind=SpanKind.SERVER if server else SpanKind.INTERNAL,
            attributes=attributes,
            start_time=_nanoseconds(since),
        )
        context = recorded.get_span_context()
        return Span(f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}", recorded)

    def close(self) -> None:
        """Send what is left, within bounds: a collector that does not answer holds up nobody."""
        if self._provider is not None:
            sender = threading.Thread(target=self._provider.shutdown, daemon=True)
            sender.start()
            sender.join(SHUTDOWN_SECONDS)


def connect(endpoint: str, sample: float) -> Traces:
    """Traces that go to an OTLP collector, `endpoint` being where it takes spans over HTTP; `sample` is the share of
    requests that are recorded where the client does not say. Raises ImportError without the packages of the extra."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample)),
        resource=Resource.create({"service.name": "stoker", "service.version": __version__}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5.0)))
    return Traces(provider)


def _nanoseconds(seconds: float | None) -> int:
    return time.time_ns() if seconds is None else round(seconds * 1e9)
