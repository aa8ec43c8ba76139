"""The whole system as its users meet it: unmodified clients, a real model, processes that come and go."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from e2e_server import KEYS, Server

QUESTION: Any = [{"role": "user", "content": "Write a long story about a fox who learns to read."}]


def client(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120.0)


def async_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120.0)


def test_a_conversation_with_cached_tokens(server: Server) -> None:
    messages: Any = [
        {"role": "system", "content": "You are a helpful assistant. " * 20},
        {"role": "user", "content": "The capital of Italy is"},
    ]
    with client(server) as api:
        first = api.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=24)
        answer = first.choices[0].message.content
        assert answer
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And of France?"}]
        second = api.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=24)
    assert first.usage
    assert second.usage
    details = second.usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens is not None
    # everything of the first turn but its last, unfinished block comes from the cache, its output included
    assert details.cached_tokens >= first.usage.prompt_tokens // 16 * 16
    assert details.cached_tokens < second.usage.prompt_tokens


def test_several_choices_cost_one_prompt(server: Server) -> None:
    def prefilled() -> int:
        """Once the heartbeat has told of all that was done before."""
        time.sleep(1.5)
        with urllib.request.urlopen(f"{server.url}/health/ready", timeout=5.0) as response:
            return json.load(response)["models"]["demo"]["replicas"]["demo/0"]["engine"]["prefill_tokens"]

    before = prefilled()
    question = "Which of these numbers is the largest? " + " ".join(map(str, range(7000, 7200)))
    with client(server) as api:
        answer = api.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": question}], n=4, max_tokens=4, seed=1
        )
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens > 800
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens < 100
    assert usage.prompt_tokens - 100 < prefilled() - before < usage.prompt_tokens + 4 * 16


def test_streaming_is_what_not_streaming_is(server: Server) -> None:
    request: Any = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 40, "seed": 1}
    with client(server) as api:
        api.chat.completions.create(**request)  # both of the others then hit the same cached prefix
        whole = api.chat.completions.create(**request)
        chunks = list(api.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert sum(len(chunk.choices) > 0 for chunk in chunks) > 10, "it came in pieces"


async def test_many_streams_at_once(server: Server) -> None:
    async with async_client(server) as api:

        async def one(number: int) -> int:
            stream = await api.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": f"Count from {number} upwards."}],
                max_tokens=12,
                seed=number,
                stream=True,
                stream_options={"include_usage": True},
            )
            usage = None
            async for chunk in stream:
                usage = chunk.usage or usage
            assert usage is not None
            return usage.completion_tokens

        counts = await asyncio.gather(*(one(number) for number in range(64)))
    assert all(1 <= count <= 12 for count in counts)


@pytest.mark.parametrize("moment", ["before the first byte", "in the middle"])
async def test_a_client_that_leaves_frees_its_place(server: Server, moment: str) -> None:
    before = await server.idle()
    async with async_client(server) as api:
        call = api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=4000, stream=True)
        if moment == "before the first byte":
            task = asyncio.create_task(call)
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            stream = await call
            async for _ in stream:
                break
            await stream.close()
    after = await server.idle()
    assert after["decode_tokens"] - before["decode_tokens"] < 400


async def test_a_client_that_leaves_the_queue(server: Server) -> None:
    """More requests than running slots; those still queued leave first, then the rest."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        body = {"model": "demo", "prompt": [[i, 9, 9] for i in range(16)], "max_tokens": 3000, "ignore_eos": True}
        tasks = [asyncio.create_task(http.post(f"{server.url}/v1/completions", json=body)) for _ in range(6)]
        end = time.monotonic() + 30.0
        while True:
            async with http.get(f"{server.url}/health/ready") as response:
                if (await response.json())["models"]["demo"]["replicas"]["demo/0"]["engine"]["waiting"] >= 16:
                    break
            assert time.monotonic() < end, "nothing queued"
            await asyncio.sleep(0.05)
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await server.idle()


async def test_hostile_requests_disturb_nobody(server: Server) -> None:
    async with async_client(server) as api, aiohttp.ClientSession() as http:

        async def healthy(number: int) -> str | None:
            reply = await api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=30, seed=number)
            return reply.choices[0].message.content

        async def hostile() -> list[int]:
            url, json_type = f"{server.url}/v1/chat/completions", {"content-type": "application/json"}
            bodies = [
                b"{" * 50_000,
                b"\xff\xfe\x00",
                b'{"model": "demo", "messages": "no list"}',
                b"[" * 200_000 + b"]" * 200_000,
                json.dumps({"model": "demo", "messages": [{"role": "user", "content": "word " * 200_000}]}).encode(),
                json.dumps({"model": "none", "messages": QUESTION}).encode(),
                json.dumps({"model": "demo", "messages": QUESTION, "temperature": 1e9}).encode(),
            ]
            found: list[int] = []
            for body in bodies * 3:
                async with http.post(url, data=body, headers=json_type) as response:
                    error = (await response.json())["error"]
                    assert error["message"]
                    assert error["code"]
                    found.append(response.status)
            return found

        async def health() -> list[float]:
            times: list[float] = []
            for _ in range(40):
                began = time.monotonic()
                async with http.get(f"{server.url}/health/live") as response:
                    assert response.status == 200
                times.append(time.monotonic() - began)
                await asyncio.sleep(0.05)
            return times

        *texts, statuses, times = await asyncio.gather(*(healthy(i) for i in range(8)), hostile(), health())
    assert all(texts)
    assert set(statuses) <= {400, 404, 413}
    # 100 ms is the promise; on a machine that runs other tests beside it the median is what can be held to it
    assert sorted(times)[len(times) // 2] < 0.1


def test_two_keys_never_share_cached_blocks(keyed_server: Server) -> None:
    prompt = "Alpha beta gamma delta epsilon zeta eta theta iota kappa lambda. " * 12

    def cached(key: str) -> int:
        with client(keyed_server, key) as api:
            reply = api.completions.create(model="demo", prompt=prompt, max_tokens=1)
        assert reply.usage
        assert reply.usage.prompt_tokens_details
        return reply.usage.prompt_tokens_details.cached_tokens or 0

    assert cached(KEYS["alice"]) == 0
    assert cached(KEYS["alice"]) > 100
    assert cached(KEYS["bob"]) == 0
    assert cached(KEYS["bob"]) > 100
    with client(keyed_server, "sk-wrong") as api, pytest.raises(openai.AuthenticationError):
        api.models.list()


def test_no_process_that_handles_text_has_torch(server: Server) -> None:
    def has_torch(pid: int) -> bool:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

    assert not has_torch(server.process.pid)
    assert has_torch(server.engine_pid())


async def test_an_engine_that_dies_is_seen_and_mended_and_its_stream_goes_on(tmp_path: Path) -> None:
    server = Server(tmp_path).wait_ready()
    try:
        async with async_client(server) as api:
            body: Any = {"model": "demo", "messages": QUESTION, "max_tokens": 100, "extra_body": {"ignore_eos": True}}
            stream = await api.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
            reader = stream.__aiter__()
            await reader.__anext__()
            os.kill(server.engine_pid(), signal.SIGKILL)
            end = time.monotonic() + 10.0
            while not any(line.get("action") == "engine_restart" for line in server.lines()):
                assert time.monotonic() < end
                await asyncio.sleep(0.02)
            with pytest.raises(openai.InternalServerError) as caught:
                await api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=5)
            assert caught.value.status_code == 503
            assert "retry-after" in caught.value.response.headers
            rest = [chunk async for chunk in reader]
            usage = rest[-1].usage
            assert usage is not None
            assert usage.completion_tokens == 100
            reply = await api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=5)
            assert reply.usage
            assert reply.usage.completion_tokens > 0
    finally:
        server.stop()


def test_ctrl_c_in_the_middle_of_work(tmp_path: Path) -> None:
    server = Server(tmp_path).wait_ready()
    engine = server.engine_pid()
    with client(server) as api:
        stream = api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=4000, stream=True)
        next(stream)
        seconds = server.stop()
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass
    assert server.process.returncode == 0
    assert seconds < 3.0  # 2 s is the promise, on a machine that does nothing else
    assert not Path(f"/proc/{engine}").exists()


def test_ctrl_c_while_it_loads(tmp_path: Path) -> None:
    server = Server(tmp_path)
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{server.url}/health/live", timeout=1.0):
                break
        except OSError:
            time.sleep(0.02)
    assert server.stop() < 3.0
    assert server.process.returncode == 0


def test_the_same_port_twice_and_a_model_that_is_not_there(server: Server, tmp_path: Path) -> None:
    def serve(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stoker.cli", "serve", "--data-dir", str(tmp_path), *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)

    busy = serve("--port", str(server.port))
    assert busy.returncode == 1
    assert str(server.port) in busy.stderr
    missing = serve("--model", str(tmp_path / "nothing"), "--port", "0")
    assert missing.returncode == 1
    assert "nothing" in missing.stderr
    public = serve("--host", "0.0.0.0", "--port", "0")
    assert public.returncode == 1
    assert "keys" in public.stderr
    for result in (busy, missing, public):
        assert "Traceback" not in result.stderr


def test_content_is_not_logged(server: Server) -> None:
    with client(server) as api:
        api.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "xyzzy-secret-word"}],
            max_tokens=3,
            extra_headers={"x-session-affinity": "session-42", "x-request-id": "req-e2e-1"},
        )
    end = time.monotonic() + 10.0
    while not (lines := [line for line in server.lines() if line.get("request") == "req-e2e-1"]):
        assert time.monotonic() < end, "the request is not logged"
        time.sleep(0.05)  # it is logged when it is over, which the client may see a little earlier
    assert len(lines) == 1
    assert lines[0]["session"] == "session-42"
    assert lines[0]["tokens_in"] > 0
    assert "xyzzy" not in server.log.read_text(encoding="utf-8")
