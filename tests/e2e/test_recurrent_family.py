"""Kimi-Linear from its maker's folder to the client: what is cached is a state, and clients see where it is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import makers
import openai
import pytest
from e2e_server import Server

PAGE = 16
LONG = "The quick brown fox jumps over the lazy dog. " * 8  # a token per byte
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, float]]]:
    """The server, and a bias by which the random model says plain characters only, and never ends by itself."""
    root, data = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("data")
    maker = makers.kimi_linear()
    maker.write(root)
    others = [*range(32), *range(127, json.loads((root / "config.json").read_text())["vocab_size"])]
    server = Server(data, "--model", str(root), "--name", "tiny", "--dtype", "float32", "--kv-memory", "64MiB")
    yield server.wait_ready(), {str(token): -100.0 for token in others}
    server.stop()


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0)


def ask(served: tuple[Server, dict[str, float]], messages: Messages, **more: Any) -> Any:
    server, bias = served
    request: Any = {"temperature": 1.0, "max_tokens": 40, "seed": 7, "logit_bias": bias}
    with client_of(server) as client:
        return client.chat.completions.create(model="tiny", messages=messages, **{**request, **more})  # type: ignore


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def cached(answer: Any) -> int:
    return answer.usage.prompt_tokens_details.cached_tokens


def test_a_seed_says_the_same_whether_or_not_a_prefix_was_found(served: tuple[Server, dict[str, float]]) -> None:
    first, again, other = (ask(served, user(LONG), seed=seed) for seed in (7, 7, 8))
    assert first.choices[0].message.content == again.choices[0].message.content != other.choices[0].message.content
    assert cached(first) < 2 * PAGE
    assert cached(again) == cached(other) == (first.usage.prompt_tokens - 1) // PAGE * PAGE


def test_the_next_turn_goes_on_from_the_answer(served: tuple[Server, dict[str, float]]) -> None:
    """Of what the turn before computed, prompt and answer, all whole pages are found."""
    messages, before = user(f"A session. {LONG}"), 0
    for turn in range(3):
        answer = ask(served, messages, max_tokens=37)
        assert answer.choices[0].finish_reason == "length"
        if turn:
            assert before - PAGE <= cached(answer) < before
        before = answer.usage.total_tokens
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, *user(f"Go on, {turn}.")]


def test_a_beginning_that_prompts_share_is_found_by_the_third(served: tuple[Server, dict[str, float]]) -> None:
    system = [{"role": "system", "content": f"You are one of many. {LONG}"}]
    found = [cached(ask(served, system + user(f"{name}, what is your task?"))) for name in ("Ann", "Ben", "Cy")]
    assert max(found[:2]) < 2 * PAGE, "what all prompts begin with"
    assert len(LONG) // PAGE * PAGE <= found[2] < len(LONG) + 100


def test_forks_compute_their_prompt_once(served: tuple[Server, dict[str, float]]) -> None:
    answer = ask(served, user(f"Three of these. {LONG}"), n=3, temperature=1.0)
    texts = {choice.message.content for choice in answer.choices}
    assert len(texts) == 3
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda n: ask(served, user(f"At once. {LONG}"), seed=n), range(4)))
    whole = (together[0].usage.prompt_tokens - 1) // PAGE * PAGE
    assert sum(cached(answer) == whole for answer in together) == 3


def test_a_stream_is_what_a_whole_answer_is(served: tuple[Server, dict[str, float]]) -> None:
    whole = ask(served, user("Stream this."))
    with client_of(served[0]) as client:
        request: Any = {"temperature": 1.0, "max_tokens": 40, "seed": 7, "logit_bias": served[1], "stream": True}
        chunks: Any = list(client.chat.completions.create(model="tiny", messages=user("Stream this."), **request))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 10, "it came in pieces"


def test_a_declared_tool_is_called(served: tuple[Server, dict[str, float]]) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    answer = ask(
        served, user("How is it?"), tools=[tool], tool_choice="required", logit_bias=None, max_tokens=400
    ).choices[0]
    assert answer.finish_reason == "tool_calls", answer
    for call in answer.message.tool_calls:
        assert call.id.startswith("functions.get_weather:")
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


async def test_clients_that_leave_free_their_states(served: tuple[Server, dict[str, float]]) -> None:
    server, bias = served
    before = await server.idle("tiny")
    request: Any = {"model": "tiny", "max_tokens": 5000, "stream": True, "logit_bias": bias}
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        streams = [await client.chat.completions.create(messages=user(f"{n}. {LONG}"), **request) for n in range(4)]
        for stream in streams:
            await anext(aiter(stream))
        await asyncio.gather(*(stream.close() for stream in streams))
    after = await server.idle("tiny")
    assert after["decode_tokens"] - before["decode_tokens"] < 4000
    assert (after["states_in_use"], after["failed_checks"]) == (0, 0)
    assert after["states_free"] + after["states_cached"] == before["states_free"] + before["states_cached"] > 100
    assert not [line for line in server.lines() if line["level"] == "error"]
