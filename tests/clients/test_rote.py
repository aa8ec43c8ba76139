"""The model that knows its words by rote says them: on our engine, after short prompts and long ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from clients.rote import REACH, RoteError, table_of, write_model
from clients.server import stoker_server
from clients.tool_turn import LAST_WORDS, lessons

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("rote")
    write_model(folder / "model", lessons("read", {"path": "a/b c.txt"}))
    with (
        stoker_server(folder, "--dtype", "float32", model=str(folder / "model")) as server,
        openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("words", [1, 10_000])
def test_a_tool_loop_ends(client: openai.OpenAI, words: int) -> None:
    messages: Any = [{"role": "user", "content": "word " * words}]
    first = client.chat.completions.create(model="demo", messages=messages, tools=TOOLS)
    message = first.choices[0].message
    assert message.content == "I will look."
    assert message.tool_calls
    assert message.tool_calls[0].to_dict()["function"] == {"name": "read", "arguments": '{"path": "a/b c.txt"}'}
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It says nothing."},
    ]
    last = client.chat.completions.create(model="demo", messages=messages, tools=TOOLS)
    assert last.choices[0].message.content == LAST_WORDS
    assert last.usage
    assert last.usage.prompt_tokens_details
    assert last.usage.prompt_tokens_details.cached_tokens
    assert last.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // 16 * 16  # type: ignore[union-attr]


def test_contradictions_are_found() -> None:
    before = list(range(REACH))
    assert len(table_of([(before, [50, 51]), (before, [50, 51])])) == 2
    with pytest.raises(RoteError, match="come both 51 and 52"):
        table_of([(before, [50, 51]), (before, [50, 52])])
