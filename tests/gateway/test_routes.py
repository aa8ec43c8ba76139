"""Everything but generation: keys, models, tokens, health, the OpenAPI document, the log line, TLS, no torch."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
import ssl
import subprocess
import sys

import pytest
from front_fakes import INFO, FakeBackend, FakeText, say
from raw_http import CHAT, ask, chat_body, connect, get, head, post, read_answer, read_head

from stoker.config import ConfigError, GatewayConfig, Tenant
from stoker.fleet.backend import Down, Starting
from stoker.gateway.app import create_app
from stoker.gateway.server import check_exposure, serve
from stoker.service.pipeline import Service
from stoker.service.tenants import Tenants


def tenant(name: str, key: str) -> Tenant:
    return Tenant(name=name, key_sha256=hashlib.sha256(key.encode()).hexdigest())


TWO = (tenant("ann", "key-a"), tenant("bob", "key-b"))


async def test_two_keys_never_share_a_cache_domain_and_one_does(launch):
    server = await launch(tenants=TWO)
    for headers in ({"authorization": "Bearer key-a"}, {"x_api_key": "key-a"}, {"authorization": "bearer key-b"}):
        spoof = chat_body(domain="tenant:ann", cache_salt="x", user="ann")
        assert (await ask(server, post(CHAT, spoof, **headers))).status == 200
    domains = [request.domain for request in server.backend.requests]
    assert domains == ["tenant:ann", "tenant:ann", "tenant:bob"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": "Bearer "}, "missing_api_key"),
        ({"authorization": "Basic key-a"}, "missing_api_key"),
        ({"authorization": "Bearer key-c"}, "invalid_api_key"),
        ({"x_api_key": "KEY-A"}, "invalid_api_key"),
    ],
)
async def test_without_a_known_key(launch, headers, code):
    server = await launch(tenants=TWO)
    for request in (post(CHAT, chat_body(), **headers), head("GET", "/v1/models", **headers)):
        answer = await ask(server, request)
        assert (answer.status, answer.code) == (401, code)
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/health/live", "/health/ready", "/openapi.json", "/"):
        assert (await get(server, path)).status == 200


async def test_without_configured_keys_any_is_taken(server):
    assert (await ask(server, post(CHAT, chat_body(), authorization="Bearer whatever"))).status == 200
    assert server.backend.requests[0].domain == "tenant:local"


async def test_models(server):
    answer = await get(server, "/v1/models")
    (model,) = answer.json["data"]
    assert (model["id"], model["root"], model["context_length"], model["max_model_len"]) == ("fake", "fake", 4096, 4096)
    assert (await get(server, "/v1/models/fake")).json == model
    assert (await get(server, "/v1/models/other")).code == "model_not_found"


async def test_tokens_there_and_back(server):
    answer = await ask(server, post("/v1/tokenize", {"model": "fake", "prompt": "hé"}))
    assert answer.json == {"count": 3, "max_model_len": 4096, "tokens": [104, 195, 169]}
    answer = await ask(server, post("/v1/detokenize", {"tokens": [104, 195, 169]}))
    assert answer.json == {"prompt": "hé"}
    answer = await ask(server, post("/v1/tokenize", {"messages": chat_body()["messages"]}))
    assert bytes(answer.json["tokens"]) == b"user:Hi\n"
    for path, body, code in (
        ("/v1/tokenize", {}, "missing_required_parameter"),
        ("/v1/tokenize", {"model": "x", "prompt": "a"}, "model_not_found"),
        ("/v1/detokenize", {"tokens": [5000]}, "invalid_value"),
        ("/v1/detokenize", {"model": "fake"}, "missing_required_parameter"),
    ):
        assert (await ask(server, post(path, body))).code == code


async def test_health(server):
    backend = server.backend
    ready = backend.state

    async def health(path):
        answer = await get(server, path)
        return answer.status, answer.json

    assert await health("/health/live") == (200, {"status": "live"})
    backend.state = Starting(stage="weights", fraction=0.25)
    assert await health("/health/live") == (200, {"status": "live"})
    waiting = {"fake/0": {"status": "down", "heartbeat_age": 0.0}}
    loading = {"status": "starting", "stage": "weights", "fraction": 0.25, "replicas": waiting}
    assert await health("/health/ready") == (503, {"status": "starting", "models": {"fake": loading}})
    assert (await ask(server, post(CHAT, chat_body()))).code == "engine_unavailable"
    backend.state = ready
    serving = {"fake/0": {"status": "ready", "heartbeat_age": 0.0}}
    assert await health("/health/ready") == (
        200,
        {"status": "ready", "models": {"fake": {"status": "ready", "replicas": serving}}},
    )
    backend.heartbeat_age = 31.0
    stuck = {"fake": {"status": "stuck", "replicas": {"fake/0": {"status": "ready", "heartbeat_age": 31.0}}}}
    assert await health("/health/live") == (503, {"status": "dead", "models": stuck})
    assert await health("/health/ready") == (503, {"status": "down", "models": stuck})
    backend.state = Down(reason="it crashed")
    backend.heartbeat_age = 0.0
    crashed = {"status": "down", "reason": "it crashed", "replicas": waiting}
    assert await health("/health/live") == (200, {"status": "live"})
    assert await health("/health/ready") == (503, {"status": "down", "models": {"fake": crashed}})
    backend.state = Down(reason="no memory", final=True)
    assert (await health("/health/live"))[0] == 503


async def test_health_with_several_models(server):
    """Not ready before all of them were; then ready as long as one is. Alive as long as one can come back."""
    other = FakeBackend()
    other.state = Starting(stage="weights", fraction=0.5)
    server.catalog.add(Service(FakeText(), INFO, other, name="other"))
    assert (await get(server, "/health/ready")).status == 503
    other.state = server.backend.state
    assert (await get(server, "/health/ready")).json["status"] == "ready"
    other.state = Down(reason="no memory", final=True)
    answer = await get(server, "/health/ready")
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert answer.json["models"]["other"]["reason"] == "no memory"
    answer = await get(server, "/health/live")
    assert (answer.status, list(answer.json["models"])) == (200, ["other"])
    server.backend.state = Down(reason="no memory", final=True)
    assert (await get(server, "/health/live")).status == 503


async def test_several_models_by_name_and_alias(server):
    other = FakeBackend(lambda _: say("I am the other."))
    server.catalog.add(Service(FakeText(), INFO, other, name="other"), ["gpt", "claude"])
    listed = (await get(server, "/v1/models")).json["data"]
    names = [("fake", "fake"), ("other", "other"), ("gpt", "other"), ("claude", "other")]
    assert [(model["id"], model["root"]) for model in listed] == names
    for name, root in names:
        answer = await ask(server, post(CHAT, chat_body(model=name)))
        assert answer.json["model"] == root
        assert ("other" in answer.json["choices"][0]["message"]["content"]) == (root == "other")
    assert (await ask(server, post("/v1/tokenize", {"model": "gpt", "prompt": "a"}))).status == 200
    answer = await ask(server, post("/v1/tokenize", {"prompt": "a"}))
    assert (answer.status, answer.code) == (400, "missing_required_parameter")
    answer = await ask(server, post(CHAT, chat_body(model="gpt-2")))
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert "'fake', 'other' are served" in answer.json["error"]["message"]


async def test_unknown_routes_and_methods(server):
    for path in ("/v2", "/v1/models/../x", "/v1/chat", "/%2e%2e"):
        answer = await get(server, path)
        assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
    answer = await get(server, CHAT)
    assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method_not_allowed", "POST")
    answer = await ask(server, post("/health/live", {}))
    assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def test_the_front_page(server):
    assert b"OpenAI-compatible" in (await get(server, "/")).body
    async with connect(server) as (reader, writer):
        writer.write(head("HEAD", "/") + head("GET", "/health/live"))
        assert (await read_head(reader))[0] == 200  # and no body, so the next answer follows
        assert (await read_answer(reader)).json == {"status": "live"}


async def test_the_document_describes_every_route_and_no_other(server):
    document = (await get(server, "/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    config = GatewayConfig()
    routes = create_app(server.catalog, config, Tenants()).routes
    served = {(path + "{id}" if path == "/v1/models/" else path): set(methods) for path, methods in routes.items()}
    assert {path: {method.upper() for method in item} for path, item in document["paths"].items()} == served
    names = set(document["components"]["schemas"])
    used = set()

    def walk(value):
        if isinstance(value, dict):
            if "$ref" in value:
                used.add(value["$ref"].removeprefix("#/components/schemas/"))
            list(map(walk, value.values()))
        elif isinstance(value, list):
            list(map(walk, value))

    walk(document)
    assert used == names
    for item in document["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            assert "200" in operation["responses"]


async def test_request_ids(server):
    answer = await get(server, "/", x_request_id="mine-1")
    assert answer.headers["x-request-id"] == "mine-1"
    made = (await get(server, "/")).headers["x-request-id"]
    assert made.startswith("req-")
    assert (await get(server, "/", x_request_id="bad id")).headers["x-request-id"].startswith("req-")
    assert (await get(server, "/", x_request_id="x" * 200)).headers["x-request-id"].startswith("req-")
    assert (await get(server, "/nowhere", x_request_id="mine-2")).headers["x-request-id"] == "mine-2"


SESSIONS = ["x-session-affinity", "x-session-id", "session-id", "x-claude-code-session-id"]


@pytest.mark.parametrize("first", range(5))
async def test_one_log_line_a_request_with_the_session_but_no_content(server, caplog, first):
    server.backend.cached = 3
    caplog.set_level(logging.INFO, "stoker")
    headers = {name.replace("-", "_"): name for name in SESSIONS[first:]}
    body = chat_body(messages=[{"role": "user", "content": "SECRET"}], prompt_cache_key="key")
    await ask(server, post(CHAT, body, x_request_id="r1", **headers))
    (record,) = [record for record in caplog.records if getattr(record, "action", "") == "http.request"]
    assert record.session == [*SESSIONS, "key"][first]
    assert (record.method, record.path, record.status, record.request) == ("POST", CHAT, 200, "r1")
    assert (record.tokens_in, record.tokens_cached, record.tokens_out, record.steps_waited) == (12, 3, 12, 2)
    assert (record.tenant, record.lane) == ("local", "standard")
    assert record.ms > 0
    assert "SECRET" not in str(vars(record))
    assert "Hello" not in str(vars(record))


async def test_a_session_is_told_what_its_prompts_lose(launch, caplog):
    """A clock in front of the conversation: all that follows it must be read again."""
    caplog.set_level(logging.INFO, "stoker")
    server = await launch(
        tenants=(*TWO, Tenant(name="eve", key_sha256=hashlib.sha256(b"key-e").hexdigest(), retain=False))
    )
    history = [{"role": "user", "content": "word " * 40}]

    async def turn(clock: str, key: str = "key-a", **more) -> str | None:
        body = chat_body(messages=[{"role": "system", "content": clock}, *history], **more)
        answer = await ask(server, post(CHAT, body, x_api_key=key, x_session_id="s"))
        return answer.headers.get("x-stoker-prefix")

    size = len("system:12:00\nuser:" + "word " * 40 + "\n")
    assert await turn("12:00") is None
    assert await turn("12:00") == f"shared={size}, of={size}, lost=0"
    assert await turn("12:01", stream=True) == f"shared=11, of={size}, lost={size - 11}"
    assert await turn("12:02", "key-b") is None
    assert await turn("12:03", "key-e") is None
    assert await turn("12:04", "key-e") is None
    lines = [record for record in caplog.records if getattr(record, "action", "") == "http.request"]
    assert [getattr(line, "prefix_lost", None) for line in lines] == [None, 0, size - 11, None, None, None]


async def test_texts_are_remembered_for_their_tenant_alone(launch):
    """And for nobody where a tenant allows it not."""
    server = await launch(
        tenants=(*TWO, Tenant(name="eve", key_sha256=hashlib.sha256(b"key-e").hexdigest(), retain=False))
    )
    count = chat_body()
    for key in ("key-a", "key-b", "key-e"):
        for path, body in ((CHAT, chat_body()), ("/v1/messages/count_tokens", count), ("/v1/tokenize", count)):
            assert (await ask(server, post(path, body, x_api_key=key))).status == 200
    assert server.text.owners == [owner for owner in ("ann", "bob", None) for _ in range(3)]


async def test_the_log_tells_how_a_request_ended(launch, caplog):
    caplog.set_level(logging.INFO, "stoker")
    server = await launch(FakeBackend(lambda _: [b"abc", "error"]))
    await ask(server, post(CHAT, chat_body(stream=True)))
    await ask(server, post(CHAT, chat_body()))
    await ask(server, post(CHAT, chat_body(n=0)))
    lines = [record for record in caplog.records if getattr(record, "action", "") == "http.request"]
    assert [(record.status, record.error) for record in lines] == [
        (200, "generation_failed"),
        (500, "generation_failed"),
        (400, "integer_below_min_value"),
    ]
    assert lines[0].tokens_out == 3


def test_the_gateway_never_imports_torch():
    code = "import sys, stoker.gateway.app, stoker.gateway.server; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_no_keys(host):
    check_exposure(host, guarded=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_any_other_host_needs_keys(host):
    check_exposure(host, guarded=True)
    with pytest.raises(ConfigError, match=r"tenants"):
        check_exposure(host, guarded=False)


async def test_serve_refuses_what_it_must_not_do(server):
    app = create_app(server.catalog, GatewayConfig(), Tenants())
    for config in (
        GatewayConfig(host="0.0.0.0", port=0),
        GatewayConfig(port=0, tls_cert="/nowhere.pem", tls_key="/nowhere.key"),
    ):
        with pytest.raises(ConfigError):
            await serve(app, config, started=lambda port: None, stop=asyncio.Event())
    with pytest.raises(OSError, match=r"[Aa]ddress"):
        await serve(app, GatewayConfig(port=server.port), started=lambda port: None, stop=asyncio.Event())


@pytest.fixture
def certificate(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True, timeout=30)
    return cert, key


async def test_tls(launch, certificate):
    cert, key = certificate
    server = await launch(FakeBackend(lambda _: say("over tls")), tls_cert=str(cert), tls_key=str(key))
    context = ssl.create_default_context(cafile=cert)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(post(CHAT, chat_body(), connection="close"))
    assert b"over tls" in await asyncio.wait_for(reader.read(), 5.0)
    writer.close()
