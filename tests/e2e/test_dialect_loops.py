"""A tool loop with the real demo model through each dialect: a small model makes valid calls because it cannot make
others, its results go back, and the loop ends."""

from __future__ import annotations

import json
from typing import Any, Literal

import anthropic
import openai
import pytest
from e2e_server import Server
from pydantic import BaseModel

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TEXT = "Get the weather."
STREAMED = pytest.mark.parametrize("streamed", [False, True])
FLAT: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA}, {"type": "web_search"}]


def check_call(name: str, arguments: Any) -> None:
    assert name == "weather"
    assert set(arguments) == {"city", "days", "unit"}
    assert isinstance(arguments["city"], str)
    assert len(arguments["city"]) <= 12
    assert type(arguments["days"]) is int
    assert 1 <= arguments["days"] <= 9
    assert arguments["unit"] in ("C", "F")


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120.0)


@STREAMED
def test_chat(server: Server, streamed: bool) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    messages: Any = [{"role": "user", "content": TEXT}]
    with client(server) as api:

        def turn(choice: str) -> Any:
            options: Any = {"model": "demo", "messages": messages, "tools": tools, "tool_choice": choice, "seed": 7}
            options |= {"max_tokens": 200, "parallel_tool_calls": False}
            if not streamed:
                return api.chat.completions.create(**options)
            with api.chat.completions.stream(**options, stream_options={"include_usage": True}) as stream:
                return stream.get_final_completion()

        answer = turn("required")
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls
        check_call(call.function.name, json.loads(call.function.arguments))
        function = {"name": call.function.name, "arguments": call.function.arguments}
        messages += [
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
        ]
        last = turn("none")
    assert last.choices[0].finish_reason in ("stop", "length")
    assert last.choices[0].message.tool_calls is None
    assert last.usage.prompt_tokens_details.cached_tokens > answer.usage.prompt_tokens // 2


@STREAMED
def test_responses(server: Server, streamed: bool) -> None:
    with client(server) as api:

        def turn(choice: Any, **more: Any) -> Any:
            options: Any = {"model": "demo", "tools": FLAT, "tool_choice": choice, "max_output_tokens": 200, **more}
            if not streamed:
                return api.responses.create(**options)
            return list(api.responses.create(**options, stream=True))[-1].response

        answer = turn({"type": "function", "name": "weather"}, input=TEXT, parallel_tool_calls=False)
        assert answer.status == "completed"
        (call,) = [item for item in answer.output if item.type == "function_call"]
        check_call(call.name, json.loads(call.arguments))
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
        last = turn("none", input=result, previous_response_id=answer.id)
    assert last.status in ("completed", "incomplete")
    assert {item.type for item in last.output} <= {"message"}
    assert last.usage.input_tokens_details.cached_tokens > answer.usage.input_tokens // 2


@STREAMED
def test_messages(server: Server, streamed: bool) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    messages: Any = [{"role": "user", "content": TEXT}]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120.0) as api:

        def turn(choice: Any) -> Any:
            options: Any = {"model": "demo", "max_tokens": 200, "messages": messages, "tools": tools}
            options["tool_choice"] = choice
            if not streamed:
                return api.messages.create(**options)
            with api.messages.stream(**options) as stream:
                return stream.get_final_message()

        answer = turn({"type": "any", "disable_parallel_tool_use": True})
        assert answer.stop_reason == "tool_use"
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        check_call(call.name, call.input)
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        messages += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
        ]
        last = turn({"type": "none"})
    assert last.stop_reason in ("end_turn", "max_tokens")
    assert {block.type for block in last.content} <= {"text"}
    assert last.usage.cache_read_input_tokens > answer.usage.input_tokens // 2


class City(BaseModel):
    size: Literal["small", "large"]
    coast: bool


def test_the_clients_parse_helpers(server: Server) -> None:
    with client(server) as api:
        chat = api.chat.completions.parse(
            model="demo", messages=[{"role": "user", "content": "Oslo?"}], response_format=City, max_tokens=60
        )
        answer = api.responses.parse(model="demo", input="Oslo?", text_format=City, max_output_tokens=60)
    assert isinstance(chat.choices[0].message.parsed, City)
    assert isinstance(answer.output_parsed, City)
