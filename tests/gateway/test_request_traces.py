"""The gateway's and the service's part of a trace, and what of it goes to the engine."""

from __future__ import annotations

import asyncio

import pytest
from front_fakes import INFO, FakeBackend, FakeText, say
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stoker.config import GatewayConfig
from stoker.gateway.app import create_app
from stoker.obs.traces import Traces
from stoker.service.catalog import Catalog
from stoker.service.pipeline import Service
from stoker.service.tenants import Tenants
from stoker.types.errors import ErrorKind, StokerError

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Rig:
    """An application with a recorder, called without a socket."""

    def __init__(self, backend: FakeBackend) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        traces = Traces(provider)
        self.backend = backend
        self.service = Service(FakeText(), INFO, backend, traces=traces)
        catalog = Catalog()
        catalog.add(self.service)
        self.app = create_app(catalog, GatewayConfig(), Tenants(), traces=traces)

    async def ask(self, path: str, body: bytes, *headers: tuple[bytes, bytes], method: str = "POST") -> int:
        messages = [{"type": "http.request", "body": body}]
        sent = []

        async def receive():
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message):
            sent.append(message)

        given = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
        await self.app({"type": "http", "method": method, "path": path, "headers": given}, receive, send)
        return sent[0]["status"]

    @property
    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
async def rig():
    made = Rig(FakeBackend(lambda _: say("Hi.")))
    yield made
    made.service.close()


async def test_the_engine_is_told_where_it_belongs(rig):
    body = b'{"model": "fake", "prompt": "x", "n": 2}'
    assert await rig.ask("/v1/completions", body, (b"traceparent", CLIENT.encode())) == 200
    spans = rig.spans
    assert spans.keys() == {"POST /v1/completions", "text_completion fake", "render"}
    mine = spans["text_completion fake"].context
    expected = f"00-{mine.trace_id:032x}-{mine.span_id:016x}-01"
    assert [request.traceparent for request in rig.backend.requests] == [expected] * 2
    assert expected.split("-")[1] == CLIENT.split("-")[1]
    attributes = spans["text_completion fake"].attributes
    assert attributes["gen_ai.usage.output_tokens"] == 6
    assert attributes["gen_ai.operation.name"] == "text_completion"


@pytest.mark.parametrize(
    ("body", "script", "status", "word", "root"),
    [
        (
            b'{"model": "fake", "prompt": "x"}',
            StokerError(ErrorKind.CAPACITY, "c", "m"),
            503,
            "overloaded_error",
            "failed",
        ),
        (b'{"model": "fake", "prompt": "x"}', ValueError("m"), 500, "internal_error", "failed"),
        (b'{"model": "fake", "prompt": ""}', ValueError("m"), 400, "invalid_request_error", None),
    ],
)
async def test_failures_end_every_span(rig, body, script, status, word, root):
    rig.backend.script = lambda _: [script]
    assert await rig.ask("/v1/completions", body) == status
    spans = rig.spans
    assert spans["text_completion fake"].attributes["error.type"] == word
    assert spans["POST /v1/completions"].attributes.get("error.type") == root
    assert spans["POST /v1/completions"].attributes["http.response.status_code"] == status


async def test_probes_leave_no_traces(rig):
    for path in ("/health/live", "/metrics", "/"):
        await rig.ask(path, b"", method="GET")
    assert rig.spans == {}
