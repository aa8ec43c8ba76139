"""A request as template variables: shapes, roles, and that the guard sees every string of the client's."""

from __future__ import annotations

from typing import Any

from stoker.models.text.conversation import variables
from stoker.types.chat import ChatRequest, Message, Tool, ToolCall


def keep(value: Any) -> Any:
    return value


def test_shape_is_what_transformers_would_get() -> None:
    request = ChatRequest(
        model="m",
        messages=(
            Message(role="system", content="s"),
            Message(role="user", content="u", name="bob"),
            Message(
                role="assistant",
                reasoning="r",
                tool_calls=(
                    ToolCall(id="1", name="f", arguments='{"a": [1, {"b": null}]}'),
                    ToolCall(id="2", name="g", arguments="[1]"),
                    ToolCall(id="3", name="h", arguments="{broken"),
                    ToolCall(id="4", name="h", arguments="[" * 100_000),
                ),
            ),
            Message(role="tool", content="out", tool_call_id="1"),
        ),
        tools=(Tool(name="f", description="d", parameters={"type": "object"}, strict=True), Tool(name="g")),
        template_args={"enable_thinking": False, "messages": "mine", "add_generation_prompt": False, "tools": 1},
    )
    given = variables(request, "{% if content is none %}", keep)
    assert given["enable_thinking"] is False
    assert given["add_generation_prompt"] is True
    system, user, assistant, tool = given["messages"]
    assert system == {"role": "system", "content": "s"}
    assert user == {"role": "user", "content": "u", "name": "bob"}
    assert assistant["content"] is None
    assert assistant["reasoning_content"] == "r"
    assert assistant["tool_calls"][0] == {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": {"a": [1, {"b": None}]}},
    }
    assert [call["function"]["arguments"] for call in assistant["tool_calls"][1:]] == ["[1]", "{broken", "[" * 100_000]
    assert tool == {"role": "tool", "content": "out", "tool_call_id": "1"}
    assert given["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g"}},
    ]


def test_what_a_template_does_not_know() -> None:
    request = ChatRequest(model="m", messages=(Message(role="developer", content="d"), Message(role="assistant")))
    plain = variables(request, "{{ message.content }}", keep)
    assert [(message["role"], message["content"]) for message in plain["messages"]] == [
        ("system", "d"),
        ("assistant", ""),
    ]
    assert plain["tools"] is None
    aware = variables(request, "{% if role == 'developer' and content is not none %}", keep)
    assert [message["role"] for message in aware["messages"]] == ["developer", "assistant"]
    assert aware["messages"][1]["content"] is None


def test_every_client_string_is_guarded() -> None:
    def guard(value: Any) -> Any:
        if isinstance(value, str):
            return "!" + value
        if isinstance(value, dict):
            return {guard(key): guard(item) for key, item in value.items()}
        return [guard(item) for item in value] if isinstance(value, list) else value

    def strings(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for key, item in value.items() for text in (*strings(key), *strings(item))]
        return [value] if isinstance(value, str) else [t for item in value or [] for t in strings(item)]

    call = ToolCall(id="c-id", name="c-name", arguments='{"c-key": ["c-item"]}')
    request = ChatRequest(
        model="m",
        messages=(
            Message(role="assistant", content="c-text", name="c-n", reasoning="c-why", tool_calls=(call,)),
            Message(role="assistant", tool_calls=(ToolCall(id="c-id", name="c-name", arguments="c-bad"),)),
            Message(role="tool", content="c-out", tool_call_id="c-id"),
        ),
        tools=(Tool(name="c-tool", description="c-about", parameters={"c-p": {"c-q": "c-r"}}),),
        template_args={"c-arg": "c-value"},
    )
    given = variables(request, "", guard)
    seen = strings({key: value for key, value in given.items() if key not in ("add_generation_prompt",)})
    assert not [text for text in seen if "c-" in text and not text.startswith("!c-")]
    assert len({text for text in seen if text.startswith("!c-")}) == 16
