"""Tools for models whose template has never heard of any: they are taught in the system message, in the common form of
`<tool_call>` with a JSON object, and calls and results of the history are written as text in that form.

Without this such a template would leave the tools out and never say so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.models.text.fixed import to_json
from stoker.models.text.turns import declared
from stoker.types.chat import ChatRequest, Message, Tool, ToolCall

_LESSON = """# Tools

These functions can be called, one per line as JSON:
{tools}

To call one, write its name and its arguments as JSON between these tags, and nothing after the last call:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
Each result comes back between <tool_response> and </tool_response>."""


def knows_tools(template: str) -> bool:
    return "tool" in template


def teach(request: ChatRequest) -> ChatRequest:
    """The same conversation in messages of plain text. One without tools and calls stays as it is."""
    messages = list(request.messages)
    if request.tools:
        lesson = _lesson(request.tools)
        if messages and messages[0].role in ("system", "developer"):
            messages[0] = _with(messages[0], f"{messages[0].text or ''}\n\n{lesson}")
        else:
            messages.insert(0, Message(role="system", content=lesson))
    told: list[Message] = []
    before = None
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.text or ''}\n</tool_response>"
            if before == "tool":  # one message holds all results of a turn: templates often want roles to alternate
                told[-1] = _with(told[-1], f"{told[-1].text}\n{result}")
            else:
                told.append(Message(role="user", content=result))
        elif message.tool_calls:
            calls = "\n".join(map(_written, message.tool_calls))
            text = f"{message.text}\n{calls}" if message.text else calls
            told.append(msgspec.structs.replace(_with(message, text), tool_calls=()))
        else:
            told.append(message)
        before = message.role
    return msgspec.structs.replace(request, messages=tuple(told), tools=())


def _lesson(tools: Sequence[Tool]) -> str:
    return _LESSON.format(tools="\n".join(to_json(declared(tool)["function"]) for tool in tools))


def _written(call: ToolCall) -> str:
    """The arguments as they were made, so that the model reads what it wrote."""
    arguments = call.arguments or "{}"
    return f'<tool_call>\n{{"name": {to_json(call.name)}, "arguments": {arguments}}}\n</tool_call>'


def _with(message: Message, content: str) -> Message:
    return msgspec.structs.replace(message, content=content)
