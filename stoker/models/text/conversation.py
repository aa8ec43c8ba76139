"""A chat request as the variables of a chat template: what transformers would hand to the same template.

Roles and the shape come from us, every other string from the client: those go through `guard`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stoker.types.chat import ChatRequest, Message, ToolCall

Guard = Callable[[Any], Any]


def variables(request: ChatRequest, source: str, guard: Guard) -> dict[str, Any]:
    """`source` is the template's text, which shows what it knows: the developer role, contents that are None."""
    tools = [_tool(tool.name, tool.description, tool.parameters, guard) for tool in request.tools]
    return {
        **guard(request.template_args),
        "messages": [_message(message, source, guard) for message in request.messages],
        "tools": tools or None,
        "documents": None,
        "add_generation_prompt": True,
    }


def _message(message: Message, source: str, guard: Guard) -> dict[str, Any]:
    role = message.role
    if role == "developer" and "developer" not in source:
        role = "system"
    content = message.text
    if content is None and "none" not in source.lower():
        content = ""  # templates that never ask whether it is None would fail on it, or print it
    fields: dict[str, Any] = {"role": role, "content": guard(content)}
    if message.name is not None:
        fields["name"] = guard(message.name)
    if message.reasoning is not None:
        fields["reasoning_content"] = guard(message.reasoning)
    if message.tool_calls:
        fields["tool_calls"] = [_call(call, guard) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = guard(message.tool_call_id)
    return fields


def _call(call: ToolCall, guard: Guard) -> dict[str, Any]:
    """Arguments become a dict, which most templates expect, if that is what their JSON holds; else they stay text."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    if not isinstance(arguments, dict):
        arguments = call.arguments
    function = {"name": guard(call.name), "arguments": guard(arguments)}
    return {"id": guard(call.id), "type": "function", "function": function}


def _tool(name: str, description: str | None, parameters: dict[str, Any] | None, guard: Guard) -> dict[str, Any]:
    function: dict[str, Any] = {"name": guard(name)}
    if description is not None:
        function["description"] = guard(description)
    if parameters is not None:
        function["parameters"] = guard(parameters)
    return {"type": "function", "function": function}
