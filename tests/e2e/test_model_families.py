"""Each family from its maker's folder to the client: a real `stoker serve` on a tiny model in the published layout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import makers
import openai
import pytest
from e2e_server import Server

PAGE = 16
LONG = "The quick brown fox jumps over the lazy dog. " * 8  # a token per byte: longer than what GLM-5's indexer chooses
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
FAMILIES: dict[str, Callable[[], makers.Maker]] = {
    "kimi-k2.5": makers.kimi_k25,
    "glm-4.5": makers.glm_45,
    "glm-5.3": makers.glm_5,
}
"""A new family's tests are a line here and its maker in `makers.py`."""
BY_ITSELF = {"glm-4.5"}  # the others' prompts end with <think>


@dataclass
class Served:
    """`bias` has a random model end its reasoning soon, and its answer never. Where the prompt does not open reasoning
    (`opens` false) the model may, and soon does too."""

    server: Server
    bias: dict[str, float]
    opens: bool

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key="none", max_retries=0, timeout=60.0)


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root, data = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("data")
    maker = FAMILIES[request.param]()
    maker.write(root)
    ids = maker.tokenizer(root)
    never = {str(ids[text]): -100.0 for text in (*maker.eos, *maker.generation_eos)}
    opens = request.param not in BY_ITSELF
    often = {str(ids[text]): 8.0 for text in ("</think>", *([] if opens else ["<think>"]))}
    server = Server(data, "--model", str(root), "--name", "tiny", "--dtype", "float32", "--kv-memory", "64MiB")
    yield Served(server.wait_ready(), {**often, **never}, opens)
    server.stop()


def ask(client: openai.OpenAI, text: str, **more: Any) -> Any:
    request: Any = {"messages": [{"role": "user", "content": text}], "temperature": 1.0, "max_tokens": 32, "seed": 7}
    return client.chat.completions.create(model="tiny", **{**request, **more})


def said(message: Any) -> tuple[str, str]:
    return getattr(message, "reasoning_content", None) or "", message.content or ""


def test_the_same_seed_says_the_same_and_another_does_not(served: Served) -> None:
    with served.client() as client:
        ask(client, LONG)  # those below then find the same prefix
        first, again, other = (said(ask(client, LONG, seed=seed).choices[0].message) for seed in (7, 7, 8))
    assert first == again != other
    assert "".join(first)


def test_a_stream_is_what_a_whole_answer_is(served: Served) -> None:
    with served.client() as client:
        ask(client, LONG)
        whole = ask(client, LONG, logit_bias=served.bias)
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(ask(client, LONG, logit_bias=served.bias, **options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    parts = ["".join(getattr(delta, kind, None) or "" for delta in deltas) for kind in ("reasoning_content", "content")]
    assert tuple(parts) == said(whole.choices[0].message)
    assert chunks[-1].usage == whole.usage
    assert len(deltas) > 10, "it came in pieces"


def test_cached_prefixes_are_counted(served: Served) -> None:
    with served.client() as client:
        first, again = (ask(client, f"Only here. {LONG}").usage for _ in range(2))
        longer = ask(client, f"Only here. {LONG} And then?").usage
    details = [usage.prompt_tokens_details.cached_tokens for usage in (first, again, longer)]
    assert details[0] < PAGE * 2, "the beginning of the template at most"
    assert details[1] == (first.prompt_tokens - 1) // PAGE * PAGE
    assert len(LONG) // PAGE * PAGE <= details[2] <= details[1]


def test_reasoning_ends_and_is_counted(served: Served) -> None:
    with served.client() as client:
        for seed in range(10):
            answer = ask(client, "Why?", logit_bias=served.bias, max_tokens=60, seed=seed)
            reasoning, content = said(answer.choices[0].message)
            if reasoning and content:
                break
    assert reasoning, "ten different answers"
    assert content
    assert "</think>" not in reasoning + content
    assert answer.usage.completion_tokens == 60
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < 60


def test_a_call_of_a_declared_tool_behind_reasoning(served: Served) -> None:
    with served.client() as client:
        answer = ask(
            client, "How is it?", tools=[WEATHER], tool_choice="required", logit_bias=served.bias, max_tokens=400
        )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    assert bool(said(choice.message)[0]) >= served.opens
    calls = choice.message.tool_calls
    assert {call.function.name for call in calls} == {"get_weather"}
    for call in calls:
        arguments = json.loads(call.function.arguments)
        assert arguments["city"] in ("Paris", "Rome")
        assert 1 <= arguments["days"] <= 9


async def test_a_client_that_leaves_frees_its_place(served: Served) -> None:
    before = await served.server.idle("tiny")
    request: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 5000,
        "stream": True,
    }
    async with openai.AsyncOpenAI(base_url=f"{served.server.url}/v1", api_key="none", max_retries=0) as client:
        streams = [await client.chat.completions.create(**request, logit_bias=served.bias) for _ in range(4)]
        for stream in streams:
            await anext(aiter(stream))
        await asyncio.gather(*(stream.close() for stream in streams))
    after = await served.server.idle("tiny")
    assert after["decode_tokens"] - before["decode_tokens"] < 4000
    assert after["failed_checks"] == 0
    assert not [line for line in served.server.lines() if line["level"] == "error"]
