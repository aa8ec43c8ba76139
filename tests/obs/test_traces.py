"""Spans hang together by nothing but a text; without a recorder they are nothing."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stoker.obs.traces import Traces, traceparent
from stoker.types.errors import ErrorKind, StokerError

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> Traces:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Traces(provider)


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_without_a_recorder_the_place_in_the_tree_is_passed_on() -> None:
    traces = Traces()
    assert not traces.on
    with traces.span("a", GIVEN, {"x": 1}, server=True).open() as span:
        span.note({"y": 2})
    assert span.traceparent == GIVEN
    assert traces.span("b").traceparent == ""
    traces.close()


def test_a_tree_grows_from_what_the_client_sent(traces: Traces, exporter: InMemorySpanExporter) -> None:
    with traces.span("root", GIVEN, {"http.route": "/x"}, server=True).open() as root:
        traces.span("part", root.traceparent, since=10.0).end(at=12.5)
    spans = named(exporter)
    assert spans["root"].parent is not None
    assert spans["part"].parent is not None
    assert f"{spans['root'].context.trace_id:032x}" == GIVEN.split("-")[1]
    assert f"{spans['root'].parent.span_id:016x}" == GIVEN.split("-")[2]
    assert spans["part"].parent.span_id == spans["root"].context.span_id
    assert (spans["part"].start_time, spans["part"].end_time) == (10_000_000_000, 12_500_000_000)
    assert spans["root"].attributes == {"http.route": "/x"}


def test_what_ended_a_span_is_a_word_and_no_message(traces: Traces, exporter: InMemorySpanExporter) -> None:
    for name, error in (
        ("refused", StokerError(ErrorKind.CAPACITY, "full", "secret text")),
        ("ours", ValueError("secret text")),
        ("left", asyncio.CancelledError("secret text")),
    ):
        with pytest.raises(type(error)), traces.span(name).open():
            raise error
    spans = named(exporter)
    words = {name: (span.attributes or {})["error.type"] for name, span in spans.items()}
    assert words == {"refused": "overloaded_error", "ours": "internal_error", "left": "closed"}
    assert "secret" not in "".join(span.to_json() for span in spans.values())


def test_a_span_ends_once(traces: Traces, exporter: InMemorySpanExporter) -> None:
    with traces.span("a").open(end=False) as span:
        pass
    assert exporter.get_finished_spans() == ()
    span.end()
    span.end("too late")
    span.note({"too": "late"})
    (ended,) = exporter.get_finished_spans()
    assert not ended.attributes


@pytest.mark.parametrize(
    "header", [None, "", "x", GIVEN.upper(), GIVEN + "0", GIVEN[:-1], "00-" + "0" * 5000, GIVEN.replace("-", "_")]
)
def test_what_is_no_traceparent_is_not_passed_on(header: str | None) -> None:
    assert traceparent(header) == ""
    assert traceparent(GIVEN) == GIVEN


def test_a_parent_that_cannot_be_one_begins_a_tree(traces: Traces, exporter: InMemorySpanExporter) -> None:
    traces.span("a", "00-" + "0" * 32 + "-" + "0" * 16 + "-01").end()
    traces.span("b", "00-" + "1" * 32 + "-" + "1" * 16 + "-00").end()
    (only,) = exporter.get_finished_spans()
    assert only.name == "a", "b is below a span that is not recorded"
    assert only.parent is None
