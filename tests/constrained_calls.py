"""Required tool calls over random schemas against a running server: what came of each, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp
import jsonschema
from random_schemas import random_schema

AT_ONCE = 16
MAX_TOKENS = 700


@dataclass
class Answer:
    """`calls` are names and arguments as a client gets them; a stream's pieces are already joined."""

    finish: str
    calls: list[tuple[str, str]]
    content: str


def assert_calls_are_valid(url: str, schemas: int, *, depth: int) -> None:
    """Every call of an answer that ends by itself is of a declared tool with arguments that its schema accepts, and at
    least 95 % end so."""
    chosen = [random_schema(seed, depth=depth) for seed in range(schemas)]
    answers = asyncio.run(_ask_all(url, chosen))
    ended = 0
    for seed, answer in answers:
        if answer.finish == "length":
            continue
        ended += 1
        assert answer.finish == "tool_calls", answer
        assert answer.calls
        assert not answer.content.strip()
        for name, arguments in answer.calls:
            assert name == f"tool_{seed}"
            jsonschema.validate(json.loads(arguments), chosen[seed])
    assert len(answers) == 2 * schemas
    assert ended >= 0.95 * len(answers)


async def _ask_all(url: str, schemas: list[dict[str, Any]]) -> list[tuple[int, Answer]]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(client: aiohttp.ClientSession, seed: int, stream: bool) -> tuple[int, Answer]:
        async with limit:
            return seed, await _ask(client, url, seed, schemas[seed], stream)

    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=AT_ONCE)) as client:
        asked = [one(client, seed, stream) for seed in range(len(schemas)) for stream in (False, True)]
        return await asyncio.gather(*asked)


async def _ask(client: aiohttp.ClientSession, url: str, seed: int, schema: dict[str, Any], stream: bool) -> Answer:
    function = {"name": f"tool_{seed}", "description": "Do what is asked.", "parameters": schema}
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Use the tool."}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "temperature": 1.0,
        "seed": seed,
        "max_tokens": MAX_TOKENS,
        "stream": stream,
    }
    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
        text = await response.text()
        assert response.status == 200, text
    if not stream:
        choice = json.loads(text)["choices"][0]
        return _answer(choice["finish_reason"], [choice["message"]])
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    finish = next(choice["finish_reason"] for choice in choices if choice["finish_reason"])
    return _answer(finish, [choice["delta"] for choice in choices])


def _answer(finish: str, messages: list[dict[str, Any]]) -> Answer:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for message in messages:
        for at, call in enumerate(message.get("tool_calls") or ()):
            place = call.get("index", at)
            function = call["function"]
            if function.get("name"):
                assert place not in names, "a name comes once"
                names[place], arguments[place] = function["name"], ""
            arguments[place] += function.get("arguments") or ""
    content = "".join(message.get("content") or "" for message in messages)
    return Answer(finish, [(names[place], arguments[place]) for place in sorted(names)], content)
