"""Reasoning and tool calls through every dialect, with unmodified clients and models that write in every format.

The engine is scripted: the first answer thinks, says something and makes two calls, the next one ends the loop.
"""

from __future__ import annotations

import asyncio
import json

import anthropic
import openai
import pytest
from front_fakes import FakeText, say
from pydantic import BaseModel
from raw_http import CHAT, ask, chat_body, parse_events, post

from stoker.models.text.parse.format import StartState

KIMI = (
    "I see.</think>Reading.<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{"path": "ä"}<|tool_call_end|>'
    "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)
GLM = (
    "I see.</think>Reading.<tool_call>read<arg_key>path</arg_key><arg_value>ä</arg_value></tool_call>"
    "<tool_call>now</tool_call>"
)
HERMES = (
    'I see.</think>Reading.<tool_call>{"name": "read", "arguments": {"path": "ä"}}</tool_call>'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)
FAMILIES = {"kimi_k25": KIMI, "glm47": GLM, "hermes": HERMES}

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
EMPTY = {"type": "object", "properties": {}}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": "read", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "parameters": EMPTY}},
    {"type": "web_search"},
]
FLAT_TOOLS = [
    {"type": "function", "name": "read", "parameters": SCHEMA},
    {"type": "function", "name": "now", "parameters": EMPTY},
    {"type": "namespace", "name": "mcp", "tools": []},
]
ANTHROPIC_TOOLS = [{"name": "read", "input_schema": SCHEMA}, {"name": "now", "input_schema": EMPTY}]


def run_tool(name: str, arguments: str) -> str:
    assert (name, json.loads(arguments)) in [("read", {"path": "ä"}), ("now", {})]
    return {"read": "contents of ä", "now": "noon"}[name]


class Loop:
    """A server whose model makes two calls and then ends. `turns` are the conversations that it was shown."""

    def __init__(self, server, output: str) -> None:
        self.server = server
        self.output = output
        self.turns = server.text.rendered
        server.backend.script = lambda _: say("So.</think>Done." if len(self.turns) % 2 == 0 else output)

    def check(self, ids: list[str]) -> None:
        """What the model saw of its own first answer is what it had said, and the results are in their places."""
        first, second = self.turns[-2:]
        assert second.messages[: len(first.messages)] == first.messages
        answer, *results = second.messages[len(first.messages) :]
        assert (answer.role, answer.reasoning, answer.content) == ("assistant", "I see.", "Reading.")
        assert [(call.id, call.name) for call in answer.tool_calls] == list(zip(ids, ["read", "now"], strict=True))
        assert [json.loads(call.arguments) for call in answer.tool_calls] == [{"path": "ä"}, {}]
        assert [(m.role, m.tool_call_id, m.content) for m in results] == [
            ("tool", ids[0], "contents of ä"),
            ("tool", ids[1], "noon"),
        ]
        assert [tool.name for tool in second.tools] == ["read", "now"]


@pytest.fixture(params=FAMILIES)
async def loop(request, launch):
    return Loop(await launch(text=FakeText(request.param, StartState.REASONING)), FAMILIES[request.param])


@pytest.fixture
async def client(loop):
    async with openai.AsyncOpenAI(base_url=f"{loop.server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def claude(loop):
    async with anthropic.AsyncAnthropic(base_url=loop.server.url, api_key="none", max_retries=0) as made:
        yield made


async def test_chat(loop, client):
    messages: list = [{"role": "user", "content": "Go."}]
    answer = await client.chat.completions.create(model="fake", messages=messages, tools=CHAT_TOOLS)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Reading.")
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("I see.") + 1
    messages.append(choice.message.model_dump(exclude_none=True))
    calls = choice.message.tool_calls
    for call in calls:
        result = run_tool(call.function.name, call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    last = await client.chat.completions.create(model="fake", messages=messages, tools=CHAT_TOOLS)
    assert (last.choices[0].finish_reason, last.choices[0].message.content) == ("stop", "Done.")
    loop.check([call.id for call in calls])


async def test_chat_streamed(loop, client):
    messages: list = [{"role": "user", "content": "Go."}]
    async with client.chat.completions.stream(
        model="fake", messages=messages, tools=CHAT_TOOLS[:2], stream_options={"include_usage": True}
    ) as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name, json.loads(event.arguments)) for event in done] == [
        (0, "read", {"path": "ä"}),
        (1, "now", {}),
    ]
    message = answer.choices[0].message
    assert (message.content, message.reasoning) == ("Reading.", "I see.")
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("I see.") + 1
    calls = message.tool_calls
    back = {"role": "assistant", "content": message.content, "reasoning": message.reasoning}
    back["tool_calls"] = [
        {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
        for c in calls
    ]
    messages.append(back)
    for call in calls:
        result = run_tool(call.function.name, call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    async with client.chat.completions.stream(model="fake", messages=messages, tools=CHAT_TOOLS[:2]) as stream:
        assert (await stream.get_final_completion()).choices[0].message.content == "Done."
    loop.check([call.id for call in calls])


async def test_raw_chunks_of_a_chat(loop):
    """Id and name once, with empty arguments; then pieces of arguments and nothing else."""
    answer = await ask(loop.server, post(CHAT, chat_body(stream=True, tools=CHAT_TOOLS)))
    data, _ = parse_events(answer.body)
    deltas = [json.loads(item)["choices"][0]["delta"] for item in data[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    reasoning = [delta for delta in deltas if "reasoning" in delta]
    assert "".join(delta["reasoning"] for delta in reasoning) == "I see."
    assert all(delta["reasoning"] == delta["reasoning_content"] for delta in reasoning)
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    opened = [call for call in calls if "id" in call]
    assert [(call["index"], call["function"]) for call in opened] == [
        (0, {"name": "read", "arguments": ""}),
        (1, {"name": "now", "arguments": ""}),
    ]
    assert all(
        set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
        for call in calls
        if call not in opened
    )
    assert [call["index"] for call in calls] == sorted(call["index"] for call in calls)
    assert deltas[-1] == {}


@pytest.mark.parametrize("held", ["items", "sealed", "stored"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_responses(loop, client, streamed, held):
    """Whoever holds the conversation: the client, the client without seeing the reasoning, or the server."""
    options: dict = {"model": "fake", "tools": FLAT_TOOLS, "store": held == "stored"}
    if held == "sealed":
        options["include"] = ["reasoning.encrypted_content"]

    async def turn(**more):
        if not streamed:
            return await client.responses.create(**options, **more)
        async with client.responses.stream(**options, **more) as stream:
            return await stream.get_final_response()

    given: list = [{"role": "user", "content": "Go."}]
    answer = await turn(input=given)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert answer.usage.output_tokens_details.reasoning_tokens == len("I see.") + 1
    calls = [item for item in answer.output if item.type == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": c.call_id, "output": run_tool(c.name, c.arguments)} for c in calls
    ]
    if held == "stored":
        last = await turn(input=results, previous_response_id=answer.id)
    else:
        items = [item.model_dump(exclude_none=True) for item in answer.output]
        if held == "sealed":
            del items[0]["content"]
        last = await turn(input=[*given, *items, *results])
    assert (last.output_text, last.status) == ("Done.", "completed")
    loop.check([call.call_id for call in calls])


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages(loop, claude, streamed):
    async def turn():
        options = {"model": "fake", "max_tokens": 500, "messages": messages, "tools": ANTHROPIC_TOOLS}
        if not streamed:
            return await claude.messages.create(**options)
        async with claude.messages.stream(**options) as stream:
            return await stream.get_final_message()

    messages: list = [{"role": "user", "content": "Go."}]
    answer = await turn()
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.stop_reason == "tool_use"
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"path": "ä"}, {}]
    messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]})
    results = [
        {"type": "tool_result", "tool_use_id": c.id, "content": run_tool(c.name, json.dumps(c.input))} for c in calls
    ]
    messages.append({"role": "user", "content": results})
    last = await turn()
    assert [block.text for block in last.content if block.type == "text"] == ["Done."]
    assert last.stop_reason == "end_turn"
    loop.check([call.id for call in calls])


async def test_cut_off_inside_of_a_call(loop, client, claude):
    """Streamed in part, but no part of a whole answer."""
    cut = loop.output[: loop.output.index("ä")]
    loop.server.backend.script = lambda _: say(cut, finish="length")
    messages: list = [{"role": "user", "content": "Go."}]
    chat = await client.chat.completions.create(model="fake", messages=messages, tools=CHAT_TOOLS)
    assert (chat.choices[0].finish_reason, chat.choices[0].message.tool_calls) == ("length", None)
    whole = await client.responses.create(model="fake", input="Go.", tools=FLAT_TOOLS)
    assert (whole.status, [item.type for item in whole.output]) == ("incomplete", ["reasoning", "message"])
    stream = await client.responses.create(model="fake", input="Go.", tools=FLAT_TOOLS, stream=True)
    streamed = [event async for event in stream][-1].response
    assert (streamed.status, streamed.output_text) == ("incomplete", "Reading.")
    assert [item.type for item in streamed.output] == ["reasoning", "message"]
    options = {"model": "fake", "max_tokens": 500, "messages": messages, "tools": ANTHROPIC_TOOLS}
    answer = await claude.messages.create(**options)
    assert (answer.stop_reason, [block.type for block in answer.content]) == ("max_tokens", ["thinking", "text"])


async def test_many_streams_at_once_keep_their_calls_apart(loop, client):
    loop.server.backend.script = lambda request: say(loop.output.replace("ä", str(request.prompt_ids[5])), pause=0.001)

    async def one(number: int) -> str:
        messages: list = [{"role": "user", "content": chr(97 + number)}]
        async with client.chat.completions.stream(model="fake", messages=messages, tools=CHAT_TOOLS[:2]) as stream:
            return (await stream.get_final_completion()).choices[0].message.tool_calls[0].function.arguments

    answers = await asyncio.gather(*(one(number) for number in range(14)))
    assert [json.loads(answer) for answer in answers] == [{"path": str(97 + number)} for number in range(14)]


class City(BaseModel):
    name: str
    people: int


async def test_the_clients_parse_helpers(launch):
    """Their requests are understood; until the engine constrains output they are refused, and say which field."""
    server = await launch()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for call in (
            client.chat.completions.parse(
                model="fake", messages=[{"role": "user", "content": "Oslo?"}], response_format=City
            ),
            client.responses.parse(model="fake", input="Oslo?", text_format=City),
        ):
            with pytest.raises(openai.BadRequestError) as failure:
                await call
            assert failure.value.param == "response_format"
