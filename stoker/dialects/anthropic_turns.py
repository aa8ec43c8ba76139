"""`system` and `messages` of /v1/messages: blocks -> turns of a conversation."""

from __future__ import annotations

import json
from typing import Any

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, unsupported, wrong_type
from stoker.dialects.parts import join_parts, only_text, read_source
from stoker.dialects.tools import read_value
from stoker.types.chat import Image, Message, ToolCall
from stoker.types.errors import invalid

MAX_MESSAGES = 10_000
MAX_BLOCKS = 4_096

# A client's note about itself, in the place of a prompt. It changes from request to request and comes first: as a part
# of the prompt it would cost the whole prefix cache.
_BILLING = "x-anthropic-billing-header:"


def read_turns(fields: Fields) -> tuple[Message, ...]:
    """Raises StokerError (INVALID)."""
    given = fields.array("messages", longest=MAX_MESSAGES)
    if given is None:
        raise fields.missing("messages")
    if not given:
        raise invalid("empty_array", "'messages' must have at least one message.", param="messages")
    turns = _read_system(fields)
    for position, item in enumerate(given):
        turns += _read_message(Fields.of(item, f"messages[{position}]"))
    if turns[-1].role == "assistant":
        raise unsupported(f"messages[{len(given) - 1}]", "an answer cannot be given its first words")
    return tuple(turns)


def _read_system(fields: Fields) -> list[Message]:
    blocks = _blocks(fields, "system") if fields.get("system") is not None else []
    texts = [text for block in blocks if not (text := _text_of(block)).startswith(_BILLING)]
    return [Message(role="system", content="\n".join(texts))] if texts else []


def _read_message(fields: Fields) -> list[Message]:
    role = fields.choice("role", ("user", "assistant", "system"))
    match role:
        case None:
            raise fields.missing("role")
        case "assistant":
            return [_read_answer(_blocks(fields, "content"))]
        case "system":
            return [Message(role="system", content="\n".join(map(_text_of, _blocks(fields, "content"))))]
        case _:
            return _read_user(_blocks(fields, "content"))


def _read_user(blocks: list[Fields]) -> list[Message]:
    """Results of tools are turns of their own, in their place between the other parts."""
    turns: list[Message] = []
    parts: list[str | Image] = []

    def flush() -> None:
        if parts:
            turns.append(Message(role="user", content=join_parts(parts)))
            parts.clear()

    for block in blocks:
        if block.get("type") == "tool_result":
            flush()
            turns.append(_read_result(block))
        else:
            parts.append(_read_part(block))
    flush()
    return turns or [Message(role="user", content="")]


def _read_result(block: Fields) -> Message:
    content = _blocks(block, "content") if block.get("content") is not None else []
    parts = [part for part in content if part.get("type") != "tool_reference"]
    return Message(
        role="tool",
        content=join_parts(map(_read_part, parts)),
        tool_call_id=block.required_text("tool_use_id", longest=MAX_NAME_CHARS),
    )


def _read_answer(blocks: list[Fields]) -> Message:
    """What the model wrote, put together again without a joint: its text was cut where a call stood in it."""
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        match block.get("type"):
            case "thinking":
                reasoning.append(block.required_text("thinking"))
            case "redacted_thinking" | "server_tool_use" | "web_search_tool_result" | "web_fetch_tool_result":
                pass  # made by another server, for itself
            case "tool_use":
                calls.append(_read_call(block))
            case _:
                text.append(_text_of(block))
    content = "".join(text)
    return Message(
        role="assistant",
        content=None if calls and not content else content,
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(calls),
    )


def _read_call(block: Fields) -> ToolCall:
    return ToolCall(
        id=block.required_text("id", longest=MAX_NAME_CHARS),
        name=block.required_text("name", longest=MAX_NAME_CHARS),
        arguments=json.dumps(read_value(block, "input") or {}, ensure_ascii=False),
    )


def _blocks(fields: Fields, name: str) -> list[Fields]:
    value = fields.get(name)
    if value is None:
        raise fields.missing(name)
    if isinstance(value, str):
        return [Fields({"type": "text", "text": value}, fields.param(name))]
    if not isinstance(value, list):
        raise wrong_type(fields.param(name), "a string or an array of blocks", value)
    items: list[Any] = fields.array(name, longest=MAX_BLOCKS) or []
    return [Fields.of(item, f"{fields.param(name)}[{i}]") for i, item in enumerate(items)]


def _read_part(block: Fields) -> str | Image:
    match block.required_text("type", longest=MAX_NAME_CHARS), block.get("source"):
        case "text", _:
            return block.required_text("text")
        case "document", {"type": "text", "data": str(text)}:
            return text
        case "image", _:
            return read_source(block)
        case _:
            raise unsupported(block.path, "blocks are texts and images")


def _text_of(block: Fields) -> str:
    return only_text([_read_part(block)], "images can be in a user's turns only")
