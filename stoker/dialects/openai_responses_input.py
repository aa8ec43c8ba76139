"""`input` of /v1/responses: a flat list of items -> turns of a conversation.

An answer of ours comes back as several items (reasoning, message, function calls) and becomes one turn again, the same
that it was. Items that only their vendor can make sense of (searches, custom tools, patches) are left out.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, unsupported, wrong_type
from stoker.dialects.parts import join_parts, read_image
from stoker.types.chat import Image, Message, Role, ToolCall
from stoker.types.errors import invalid

MAX_ITEMS = 20_000
MAX_PARTS = 4_096
SEAL = "stoker-reasoning-1:"

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_REFUSED = {
    "item_reference": "items are not kept, send them again",
    "compaction": "compacted conversations cannot be read",
}


def seal(reasoning: str) -> str:
    """Reasoning for a client that is to send it back and not to show it. No secret: it is the client's own answer."""
    return SEAL + base64.b64encode(reasoning.encode("utf-8", "surrogatepass")).decode()


def unseal(text: str) -> str | None:
    """None if it is not ours."""
    try:
        return base64.b64decode(text.removeprefix(SEAL), validate=True).decode() if text.startswith(SEAL) else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def read_input(fields: Fields) -> tuple[Message, ...]:
    """The turns of `input`: a string, or items. Raises StokerError (INVALID)."""
    value = fields.get("input")
    if value is None:
        raise fields.missing("input")
    if isinstance(value, str):
        return (Message(role="user", content=value),)
    if not isinstance(value, list):
        raise wrong_type("input", "a string or an array of items", value)
    turns = _Turns()
    for position, item in enumerate(fields.array("input", longest=MAX_ITEMS) or []):
        turns.add(Fields.of(item, f"input[{position}]"))
    messages = turns.finish()
    if not messages:
        raise invalid("empty_array", "'input' has nothing to answer.", param="input")
    return messages


class _Turns:
    """Items in, turns out. What the assistant says is gathered until somebody else speaks, or it begins anew."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._reasoning: str | None = None
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []

    def add(self, item: Fields) -> None:
        kind = item.text("type", longest=MAX_NAME_CHARS) or "message"
        match kind:
            case "message":
                self._message(item)
            case "reasoning":
                self._flush()
                self._reasoning = _read_reasoning(item)
            case "function_call":
                self._calls.append(_read_call(item))
            case "function_call_output":
                call_id = item.required_text("call_id", longest=MAX_NAME_CHARS)
                self._other(Message(role="tool", content=_read_content(item, "output"), tool_call_id=call_id))
            case _ if kind in _REFUSED:
                raise unsupported(item.path, _REFUSED[kind])
            case _:
                pass

    def finish(self) -> tuple[Message, ...]:
        self._flush()
        return tuple(self._messages)

    def _message(self, item: Fields) -> None:
        name = item.choice("role", _ROLES)
        if name is None:
            raise item.missing("role")
        content = _read_content(item, "content")
        if name != "assistant":
            self._other(Message(role=_ROLES[name], content=content))
            return
        if not isinstance(content, str):
            raise unsupported(item.param("content"), "an answer has no images")
        if self._texts and not self._calls:  # one answer never has two texts in a row
            self._flush()
        self._texts.append(content)

    def _other(self, message: Message) -> None:
        self._flush()
        self._messages.append(message)

    def _flush(self) -> None:
        reasoning, texts, calls = self._reasoning, self._texts, self._calls
        self._reasoning, self._texts, self._calls = None, [], []
        if reasoning is None and not texts and not calls:
            return
        content = "".join(texts) if texts or not calls else None
        self._messages.append(Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls)))


def _read_content(item: Fields, name: str) -> str | tuple[str | Image, ...]:
    value = item.get(name)
    if value is None:
        raise item.missing(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(item.param(name), "a string or an array of parts", value)
    parts: list[Any] = item.array(name, longest=MAX_PARTS) or []
    return join_parts(_read_part(Fields.of(part, f"{item.param(name)}[{i}]")) for i, part in enumerate(parts))


def _read_part(part: Fields) -> str | Image:
    kind = part.required_text("type", longest=MAX_NAME_CHARS)
    if kind == "input_image":
        if part.get("image_url") is None and part.get("file_id") is not None:
            raise unsupported(part.param("file_id"), "files are not kept, send the image itself")
        return read_image(part, "image_url")
    if kind not in _TEXT_PARTS:
        raise unsupported(part.path, "parts are texts and images")
    return part.required_text(_TEXT_PARTS[kind])


def _read_reasoning(item: Fields) -> str | None:
    """Its text, or what was sealed for the way there and back; a summary is not what the model thought."""
    parts = [
        Fields.of(part, f"{item.path}.content[{i}]")
        for i, part in enumerate(item.array("content", longest=MAX_PARTS) or [])
    ]
    if parts:
        return "".join(part.required_text("text") for part in parts)
    sealed = item.text("encrypted_content")
    return None if sealed is None else unseal(sealed)


def _read_call(item: Fields) -> ToolCall:
    return ToolCall(
        id=item.required_text("call_id", longest=MAX_NAME_CHARS),
        name=item.required_text("name", longest=MAX_NAME_CHARS),
        arguments=item.text("arguments") or "{}",
    )
