"""A conversation as the built-in renderers take it, made from a canonical request or from a chat body as clients send
it. What the API refuses (videos) has a place here: `stoker render` shows what such a conversation becomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from stoker.types.chat import ChatRequest, Message, Tool
from stoker.types.errors import invalid


class Media(StrEnum):
    """A part that is no text. What it shows is not the renderer's business: it writes a placeholder."""

    IMAGE = "image"
    VIDEO = "video"


class Call(msgspec.Struct, frozen=True):
    """`arguments` is JSON text as it was produced, or an object that a client sent as such."""

    id: str
    name: str
    arguments: str | dict[str, Any]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message. Content that is null, empty or absent is no parts at all."""

    role: str
    parts: tuple[str | Media, ...] = ()
    name: str | None = None
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    call_id: str = ""

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part for part in self.parts if not isinstance(part, Media))


class Conversation(msgspec.Struct, frozen=True):
    """`tools` are declarations in OpenAI's form with all their keys, in their order. `options` are the template's
    switches (`thinking`, `clear_thinking`, ...)."""

    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    options: Mapping[str, Any] = {}

    def switch(self, *names: str, default: bool) -> bool:
        """The first of the options that is given, as a yes or no."""
        given = (self.options[name] for name in names if self.options.get(name) is not None)
        return bool(next(given, default))


def from_request(request: ChatRequest, defaults: Mapping[str, Any]) -> Conversation:
    """`defaults` are the switches that hold unless the request sets them. Always asks for an answer."""
    turns = [
        Turn(
            role=message.role,
            parts=_content_of(message),
            name=message.name,
            reasoning=message.reasoning,
            calls=tuple(Call(call.id, call.name, call.arguments) for call in message.tool_calls),
            call_id=message.tool_call_id or "",
        )
        for message in request.messages
    ]
    options = {**defaults, **request.template_args, "add_generation_prompt": True}
    return Conversation(tuple(turns), tuple(map(declared, request.tools)), options)


def _content_of(message: Message) -> tuple[str | Media, ...]:
    if isinstance(message.content, tuple):
        return tuple(part if isinstance(part, str) else Media.IMAGE for part in message.content)
    return (message.content,) if message.content else ()


def from_body(body: Mapping[str, Any]) -> Conversation:
    """`messages`, `tools` and `kwargs` of a JSON object, as a client's chat request has the first two. Raises
    StokerError (INVALID) where something is of a wrong kind."""
    messages, tools, options = body.get("messages"), body.get("tools") or [], body.get("kwargs") or {}
    if not isinstance(messages, list):
        raise invalid("invalid_type", "'messages' must be an array", param="messages")
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function", {}), dict) for tool in tools
    ):
        raise invalid("invalid_type", "'tools' must be an array of objects that hold a function", param="tools")
    if not isinstance(options, dict):
        raise invalid("invalid_type", "'kwargs' must be an object", param="kwargs")
    return Conversation(tuple(_turn(item, f"messages[{i}]") for i, item in enumerate(messages)), tuple(tools), options)


def declared(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's form. `strict` is left out: it asks the server for something, not the model."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _turn(item: Any, param: str) -> Turn:
    match item:
        case {"role": str(role)}:
            pass
        case _:
            raise invalid("invalid_type", f"'{param}' must be an object with a role", param=param)
    calls = item.get("tool_calls") or []
    if not isinstance(calls, list):
        raise invalid("invalid_type", f"'{param}.tool_calls' must be an array", param=f"{param}.tool_calls")
    reasoning = _text(item, "reasoning_content", param)
    return Turn(
        role=role,
        parts=_parts(item.get("content"), f"{param}.content"),
        name=_text(item, "name", param),
        reasoning=_text(item, "reasoning", param) if reasoning is None else reasoning,
        calls=tuple(_call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(calls)),
        call_id=_text(item, "tool_call_id", param) or "",
    )


def _text(item: dict[str, Any], key: str, param: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise invalid("invalid_type", f"'{param}.{key}' must be a string", param=f"{param}.{key}")
    return value


def _parts(content: Any, param: str) -> tuple[str | Media, ...]:
    match content:
        case None | "":
            return ()
        case str():
            return (content,)
        case list():
            return tuple(_part(part, f"{param}[{i}]") for i, part in enumerate(content))
        case _:
            raise invalid("invalid_type", f"'{param}' must be a string or an array of parts", param=param)


def _part(part: Any, param: str) -> str | Media:
    match part:
        case str() | {"type": "text", "text": str()}:
            return part if isinstance(part, str) else part["text"]
        case {"type": "image_url" | "image"}:
            return Media.IMAGE
        case {"type": "video_url" | "video"}:
            return Media.VIDEO
        case _:
            raise invalid(
                "invalid_value", f"'{param}' must be a part of type text, image_url or video_url", param=param
            )


def _call(call: Any, param: str) -> Call:
    match call:
        case {"function": {"name": str(name), "arguments": (str() | dict()) as arguments}}:
            return Call(_text(call, "id", param) or "", name, arguments)
        case {"function": {"name": str(name), "arguments": None}}:
            return Call(_text(call, "id", param) or "", name, "{}")
        case _:
            raise invalid(
                "invalid_type",
                f"'{param}' must have a function with a name and arguments, a text or an object",
                param=param,
            )
