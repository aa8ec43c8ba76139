"""What /metrics says after real requests; who may read it; that the page about it is complete."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path

import aiohttp
import pytest
from front_fakes import FakeBackend, say
from prometheus_client.parser import text_string_to_metric_families
from raw_http import CHAT, chat_body, connect, post, read_head

from stoker.config import GatewayConfig, Tenant
from stoker.gateway.app import create_app
from stoker.service.catalog import Catalog
from stoker.service.tenants import Tenants
from stoker.types.errors import ErrorKind, StokerError

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


async def scrape(server, **headers):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/metrics", headers=headers) as response,
    ):
        return response.status, response.headers, await response.text()


async def samples(server):
    """{(name, its labels in order of their names): value}"""
    status, headers, text = await scrape(server)
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()) if value)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def ask(server, path=CHAT, status=200, headers=None, **body):
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}{path}", json=chat_body(**body), headers=headers) as response,
    ):
        await response.read()
        assert response.status == status


def counted(found, name, **labels):
    """The sum of all series of `name` that have these labels."""
    wanted = {f"{key}={value}" for key, value in labels.items()}
    return sum(value for (series, *has), value in found.items() if series == name and wanted <= set(has))


async def test_a_request_is_counted_once_in_everything(launch):
    backend = FakeBackend(lambda _: say("Hello there.", pause=0.001))
    server = await launch(backend)
    backend.cached = 5
    await ask(server, stream=True)
    await ask(server, service_tier="priority")
    found = await samples(server)
    assert counted(found, "stoker_requests_total", route=CHAT, status=200, outcome="ok") == 2
    assert counted(found, "stoker_requests_total", route=CHAT, lane="interactive") == 1
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        series = f"gen_ai_server_{name}_seconds"
        assert counted(found, f"{series}_count", gen_ai_request_model="fake", gen_ai_operation_name="chat") == 2
        assert counted(found, f"{series}_sum") > 0
    assert counted(found, "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 2 * 12
    assert counted(found, "stoker_tokens_total", bucket="output_text") == 2 * 12
    assert counted(found, "stoker_tokens_total", bucket="input_cached") == 2 * 5
    prompt = counted(found, "gen_ai_client_token_usage_sum", gen_ai_token_type="input")
    assert counted(found, "stoker_tokens_total", bucket="input_uncached") == prompt - 2 * 5 > 0
    assert found["stoker_requests_in_flight",] == 1, "this one"


@pytest.mark.parametrize(
    ("script", "status", "outcome", "error"),
    [
        ([StokerError(ErrorKind.CAPACITY, "queue_full", "full")], 503, "failed", "overloaded_error"),
        ([StokerError(ErrorKind.INVALID, "no", "no")], 400, "invalid", "invalid_request_error"),
        ([ValueError("a mistake of ours")], 500, "failed", "internal_error"),
    ],
)
async def test_failures_say_what_they_were(launch, script, status, outcome, error):
    server = await launch(FakeBackend(lambda _: script))
    await ask(server, status=status)
    found = await samples(server)
    assert counted(found, "stoker_requests_total", status=status, outcome=outcome) == 1
    assert counted(found, "gen_ai_server_request_duration_seconds_count", error_type=error) == 1
    assert counted(found, "gen_ai_server_time_to_first_token_seconds_count") == 0
    assert counted(found, "stoker_tokens_total") == 0


async def test_what_breaks_in_the_middle_and_who_leaves(launch):
    server = await launch(FakeBackend(lambda _: [b"abc", StokerError(ErrorKind.UNAVAILABLE, "gone", "gone")]))
    await ask(server, stream=True)
    found = await samples(server)
    assert counted(found, "stoker_requests_total", status=200, outcome="broken") == 1
    assert counted(found, "stoker_tokens_total", bucket="output_text") == 3, "they were computed"
    server.backend.script = lambda _: say("x" * 100_000, pause=0.001)
    async with connect(server) as (reader, writer):
        writer.write(post(CHAT, chat_body(stream=True)))
        await read_head(reader)
        await reader.readexactly(500)
    await server.backend.until(lambda: not server.backend.open)
    async with asyncio.timeout(5):
        while not counted(found, "stoker_requests_total", outcome="disconnected"):
            found = await samples(server)
    assert counted(found, "gen_ai_server_request_duration_seconds_count", error_type="closed") == 1
    assert counted(found, "gen_ai_server_time_to_first_token_seconds_count") == 1


async def test_what_a_session_loses_of_its_prefix(server):
    for question in ("x" * 3000, "x" * 3000 + "y", "z" + "x" * 3000):
        message = [{"role": "user", "content": question}]
        await ask(server, messages=message, headers={"x-session-id": "s"})
    found = await samples(server)
    assert found["stoker_prefix_lost_tokens_count", "model=fake"] == 2
    assert 2900 < found["stoker_prefix_lost_tokens_sum", "model=fake"] < 3100
    assert found["stoker_prefix_lost_tokens_bucket", "le=16.0", "model=fake"] == 1


async def test_paths_that_clients_make_up_make_no_series(server):
    for path in ("/v1/nothing", "/v1/models/whatever", "/robots.txt"):
        await ask(server, path, status=405 if "models" in path else 404)
    found = await samples(server)
    routes = {label for series in found if series[0] == "stoker_requests_total" for label in series if "route" in label}
    assert routes == {"route=other", "route=/v1/models/"}


async def test_no_tenant_session_or_content_is_told(launch):
    key = "sk-alice"
    tenant = Tenant(name="acme-secret", key_sha256=hashlib.sha256(key.encode()).hexdigest())
    server = await launch(tenants=(tenant,))
    headers = {"authorization": f"Bearer {key}", "x-session-id": "session-secret"}
    await ask(server, messages=[{"role": "user", "content": "content-secret"}], user="user-secret", headers=headers)
    status, _, text = await scrape(server)
    assert status == 200, "and no key is needed from here"
    assert 'stoker_requests_total{lane="standard"' in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("shown", "client", "status"),
    [
        ("local", "127.0.0.1", 200),
        ("local", "::1", 200),
        ("local", "10.0.0.9", 404),
        ("local", "", 404),
        ("all", "10.0.0.9", 200),
        ("off", "127.0.0.1", 404),
    ],
)
async def test_who_may_read_it(shown, client, status):
    app = create_app(Catalog(), GatewayConfig(metrics=shown), Tenants())
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
    if client:
        scope["client"] = (client, 1234)
    sent = []

    async def send(message):
        sent.append(message)

    await app(scope, None, send)
    assert sent[0]["status"] == status


async def test_openmetrics_is_spoken_too(server):
    _, headers, text = await scrape(server, accept="application/openmetrics-text; version=1.0.0")
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_the_page_lists_exactly_what_is_exported(server):
    _, _, text = await scrape(server)
    exported = set(re.findall(r"^# TYPE (\S+) ", text, flags=re.MULTILINE))
    page = PAGE.read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE))
    assert listed == exported
    for name in exported:
        (kind,) = re.findall(rf"^# TYPE {name} (\w+)$", text, flags=re.MULTILINE)
        assert re.search(rf"^\| `{name}` \| {kind} \|", page, flags=re.MULTILINE), f"{name} is a {kind}"
