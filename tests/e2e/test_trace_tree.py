"""One tree of spans for each request, from the client's own to the engine's phases, as a collector receives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_server import Server
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stoker.models.source import ModelFiles

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TREE = {
    "POST /v1/chat/completions": "",
    "chat tiny": "POST /v1/chat/completions",
    "render": "chat tiny",
    "route": "chat tiny",
    "queued": "route",
    "prefill": "route",
    "decode": "route",
}


class Collector:
    """Takes spans as an OpenTelemetry collector does; `spans` are those of the trace that the client began."""

    def __init__(self) -> None:
        bodies = self.bodies = list[bytes]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def spans(self) -> list[Any]:
        found: list[Any] = []
        for body in tuple(self.bodies):
            request = ExportTraceServiceRequest.FromString(body)
            found += [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
        return [span for span in found if span.trace_id.hex() == CLIENT.split("-")[1]]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def test_one_tree_for_a_request(collector: Collector, tiny_llama: ModelFiles, tmp_path: Path) -> None:
    config = tmp_path / "stoker.toml"
    config.write_text(f'[traces]\nendpoint = "{collector.endpoint}"\n', encoding="utf-8")
    server = Server(tmp_path, str(config), "--model", tiny_llama.root, "--name", "tiny").wait_ready()
    began = time.time_ns()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as api:
        answer = api.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Nobody else shall read this. " * 8}],
            max_tokens=16,
            extra_headers={"traceparent": CLIENT, "x-session-id": "session-secret"},
            extra_body={"ignore_eos": True},
        )
    ended = time.time_ns()
    server.stop()  # sends what is left
    spans = {span.name: span for span in collector.spans}
    assert len(collector.spans) == len(spans) == len(TREE), "each once"
    names = {span.span_id: name for name, span in spans.items()}
    assert {name: names.get(span.parent_span_id, "") for name, span in spans.items()} == TREE
    root = spans["POST /v1/chat/completions"]
    assert root.parent_span_id.hex() == CLIENT.split("-")[2]
    for name, parent in TREE.items():
        outer = (began, ended) if not parent else (spans[parent].start_time_unix_nano, spans[parent].end_time_unix_nano)
        span = spans[name]
        slack = 0 if name in ("render", "route", "chat tiny", "decode") else 50_000_000  # clocks of two processes
        assert outer[0] - slack <= span.start_time_unix_nano <= span.end_time_unix_nano <= outer[1] + slack, name
    assert spans["prefill"].start_time_unix_nano == spans["queued"].end_time_unix_nano
    attributes = {
        item.key: item.value.string_value or item.value.int_value for span in spans.values() for item in span.attributes
    }
    assert answer.usage is not None
    assert attributes["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert attributes["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens == 16
    assert attributes["stoker.replica"] == "tiny/0"
    assert attributes["stoker.outcome"] == "ok"
    assert attributes["stoker.request"] == answer.id
    assert all(b"secret" not in body and b"Nobody" not in body for body in collector.bodies)


def test_a_collector_that_is_not_there_holds_up_nobody(tiny_llama: ModelFiles, tmp_path: Path) -> None:
    config = tmp_path / "stoker.toml"
    config.write_text('[traces]\nendpoint = "http://127.0.0.1:9/v1/traces"\n', encoding="utf-8")
    server = Server(tmp_path, str(config), "--model", tiny_llama.root, "--name", "tiny").wait_ready()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as api:
        api.completions.create(model="tiny", prompt="Hello", max_tokens=2)
    assert server.stop() < 8.0
