"""Schemas and grammars made to do harm: refused in time, while other streams go on as if nothing were."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import aiohttp
from e2e_server import Server

STREAMS = 16
PROMISED = 5.0  # seconds


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def schema_body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def tool_body(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters, **more}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def patterns(count: int) -> dict[str, Any]:
    return {"allOf": [{"type": "string", "pattern": f"^(.*a.{{{i}}}b.*){{9}}$"} for i in range(30, 30 + count)]}


HOSTILE: dict[str, dict[str, Any]] = {
    "too deep": schema_body(deep(40)),
    "too large": schema_body({"enum": [f"{i:064}" for i in range(1500)]}),
    "huge enum": schema_body({"enum": list(range(9000))}),
    "ref cycle": schema_body({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    "only itself": schema_body({"anyOf": [{"allOf": [{"$ref": "#"}]}]}),
    "many optional": schema_body({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}),
    "patterns": schema_body(patterns(40)),
    "other patterns": schema_body(patterns(30)),
    "strict tool": tool_body({"type": "object", "properties": {"a": patterns(35)}, "required": ["a"]}, strict=True),
    "deep tool": tool_body(deep(40)),
    "remote ref": tool_body({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}),
    "300 tools": {
        "tools": [{"type": "function", "function": {"name": f"f{i}", "parameters": {}}} for i in range(300)],
        "tool_choice": "required",
    },
    "regex": {"response_format": {"type": "regex", "pattern": "(((a|b|ab){1,99}c?){1,99}d?){1,99}"}},
    "look-around": {"response_format": {"type": "regex", "pattern": "(?=a)b"}},
    "left recursion": {"response_format": {"type": "grammar", "grammar": "start: start start start | start start"}},
    "repetition": {"response_format": {"type": "grammar", "grammar": 'start: b{1000}\nb: c{1000}\nc: "a"{1000}'}},
    "tokens": {"response_format": {"type": "grammar", "grammar": "start: <[0-100]>"}},
}


class Watch:
    """What one stream saw: when each chunk came, and how it ended."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.finish: str | None = None
        self.going = asyncio.Event()

    def chunk(self) -> None:
        self.times.append(time.monotonic())
        if len(self.times) > 3:
            self.going.set()

    def longest_gap(self, begin: float, end: float) -> float:
        inside = [begin, *(at for at in self.times if begin < at < end), end]
        return max(later - earlier for earlier, later in pairwise(inside))


async def test_hostile_grammars_end_in_time_and_disturb_nobody(server: Server) -> None:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        await ask(client, server, {"response_format": {"type": "regex", "pattern": "[ab]"}})  # workers are warm
        watches = [Watch() for _ in range(STREAMS)]
        streams = [asyncio.create_task(stream(client, server, watch, i)) for i, watch in enumerate(watches)]
        await asyncio.gather(*(watch.going.wait() for watch in watches))
        calm_from = time.monotonic()
        await asyncio.sleep(3.0)
        calm_until = time.monotonic()
        took: dict[str, float] = {}
        for name, body in HOSTILE.items():
            began = time.monotonic()
            status, error = await ask(client, server, body)
            took[name] = time.monotonic() - began
            assert status == 400, (name, status, error)
            assert error["error"]["type"] == "invalid_request_error", name
            if all(watch.finish for watch in watches):
                break
        ended = time.monotonic()
        assert max(took.values()) < PROMISED, took
        running = [watch for watch in watches if watch.finish is None]
        calm = max(watch.longest_gap(calm_from, calm_until) for watch in watches)
        for watch in running:
            assert watch.longest_gap(calm_until, ended) < 2.0 + 3 * calm
        await asyncio.gather(*streams)
        assert {watch.finish for watch in watches} <= {"length", "stop"}


async def ask(client: aiohttp.ClientSession, server: Server, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 8, **fields}
    async with client.post(f"{server.url}/v1/chat/completions", json=body) as response:
        return response.status, await response.json()


async def stream(client: aiohttp.ClientSession, server: Server, watch: Watch, seed: int) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"Count from {seed} on for as long as you can."}],
        "max_tokens": 300,
        "seed": seed,
        "stream": True,
        "ignore_eos": True,
    }
    async with client.post(f"{server.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: {"):
                watch.chunk()
                for choice in json.loads(line[6:])["choices"]:
                    watch.finish = choice["finish_reason"] or watch.finish
