"""POST /v1/chat/completions: body -> ChatRequest. Pure functions; what comes back is openai_chat_encode's."""

from __future__ import annotations

import msgspec

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, JsonObject, unsupported, wrong_type
from stoker.dialects.openai_common import MAX_CHOICES, read_lane, read_session, read_stream, refuse_unsupported
from stoker.dialects.output_format import read_response_format
from stoker.dialects.parts import join_parts, only_text, read_image
from stoker.dialects.sampling import read_logprob_count, read_max_tokens, read_sampling, read_stop
from stoker.dialects.thinking import read_thinking
from stoker.dialects.tools import MAX_TOOLS, check_tool_choice, read_function, read_tool_choice
from stoker.types.chat import ChatRequest, Image, Message, Role, Tool, ToolCall
from stoker.types.errors import invalid

MAX_MESSAGES = 10_000
MAX_PARTS = 4_096
MAX_TOOL_CALLS = 1_024

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

_REFUSED = {
    "audio": "audio output",
    "functions": "replaced by 'tools'",
    "function_call": "replaced by 'tool_choice'",
    "moderation": "moderation",
    "web_search_options": "web search",
}


def decode_chat(body: JsonObject, *, session: str | None) -> ChatRequest:
    """Check a body and read it. `session` is what the request's headers say. Raises StokerError (INVALID)."""
    fields = Fields(body)
    refuse_unsupported(fields, _REFUSED)
    _check_modalities(fields)
    stream, include_usage = read_stream(fields)
    lane, tier = read_lane(fields)
    model = fields.required_text("model", longest=MAX_NAME_CHARS)
    tools, choice = read_tools(fields), read_tool_choice(fields)
    check_tool_choice(choice, tools)
    template_args, budget = read_thinking(fields)
    return ChatRequest(
        model=model,
        messages=read_messages(fields),
        tools=tools,
        tool_choice=choice,
        constrain_tools=fields.get("constrain_tools") is None or fields.boolean("constrain_tools"),
        response_format=read_response_format(fields),
        reasoning_budget=budget,
        template_args=template_args,
        sampling=read_sampling(
            fields,
            logprobs=_read_logprobs(fields),
            max_tokens=read_max_tokens(fields, "max_completion_tokens", "max_tokens"),
        ),
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        stop=read_stop(fields),
        stream=stream,
        include_usage=include_usage,
        lane=lane,
        service_tier=tier,
        session=read_session(fields, session),
    )


def _check_modalities(fields: Fields) -> None:
    for value in fields.array("modalities", longest=16) or []:
        if value != "text":
            raise unsupported("modalities", "only text is generated")


def _read_logprobs(fields: Fields) -> int | None:
    top = read_logprob_count(fields, "top_logprobs")
    if not fields.boolean("logprobs"):
        if top:
            raise invalid("invalid_value", "'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
        return None
    return top or 0


def read_messages(fields: Fields) -> tuple[Message, ...]:
    given = fields.array("messages", longest=MAX_MESSAGES)
    if given is None:
        raise fields.missing("messages")
    if not given:
        raise invalid("empty_array", "'messages' must have at least one message.", param="messages")
    return tuple(_read_message(Fields.of(item, f"messages[{i}]")) for i, item in enumerate(given))


def _read_message(fields: Fields) -> Message:
    name = fields.choice("role", _ROLES)
    if name is None:
        raise fields.missing("role")
    role = _ROLES[name]
    content = _read_content(fields)
    if role != "assistant":
        if content is None:
            raise fields.missing("content")
        content = content if isinstance(content, str) else join_parts(content)
        tool_call_id = fields.text("tool_call_id", longest=MAX_NAME_CHARS) if role == "tool" else None
        if role == "tool" and tool_call_id is None:
            raise fields.missing("tool_call_id")
        sender = fields.text("name", longest=MAX_NAME_CHARS)
        return Message(role=role, content=content, name=sender, tool_call_id=tool_call_id)
    if fields.get("function_call"):
        raise unsupported(fields.param("function_call"), "replaced by 'tool_calls'")
    if isinstance(content, list):
        content = only_text(content, "an answer has no images")
    calls = fields.array("tool_calls", longest=MAX_TOOL_CALLS) or []
    if content is None and not calls:
        content = fields.text("refusal") or ""
    return Message(
        role=role,
        content=content,
        name=fields.text("name", longest=MAX_NAME_CHARS),
        reasoning=fields.text("reasoning_content") or fields.text("reasoning"),
        tool_calls=tuple(_read_call(Fields.of(c, f"{fields.path}.tool_calls[{i}]")) for i, c in enumerate(calls)),
    )


def _read_content(fields: Fields) -> str | list[str | Image] | None:
    value = fields.get("content")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(fields.param("content"), "a string or an array of parts", value)
    parts = fields.array("content", longest=MAX_PARTS) or []
    return [_read_part(Fields.of(p, f"{fields.path}.content[{i}]")) for i, p in enumerate(parts)]


def _read_part(fields: Fields) -> str | Image:
    kind = fields.required_text("type", longest=MAX_NAME_CHARS)
    match kind:
        case "text" | "refusal":
            return fields.required_text(kind)
        case "image_url":
            url = fields.object("image_url")
            if url is None:
                raise fields.missing("image_url")
            return msgspec.structs.replace(read_image(url, "url"), param=fields.path)
        case _:
            raise unsupported(fields.path, "parts are texts and images")


def _read_call(fields: Fields) -> ToolCall:
    function = fields.object("function")
    if function is None:
        raise fields.missing("function")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # some clients keep them parsed
        arguments = msgspec.json.encode(arguments).decode()
    if arguments is not None and not isinstance(arguments, str):
        raise wrong_type(function.param("arguments"), "a string of JSON", arguments)
    return ToolCall(
        id=fields.required_text("id", longest=MAX_NAME_CHARS),
        name=function.required_text("name", longest=MAX_NAME_CHARS),
        arguments=arguments or "{}",
    )


def read_tools(fields: Fields) -> tuple[Tool, ...]:
    """Declared functions. Tool types we do not know are dropped: agents declare some that only their vendor runs."""
    given = fields.array("tools", longest=MAX_TOOLS) or []
    tools = [_read_tool(Fields.of(item, f"tools[{i}]")) for i, item in enumerate(given)]
    return tuple(tool for tool in tools if tool is not None)


def _read_tool(fields: Fields) -> Tool | None:
    if fields.required_text("type", longest=MAX_NAME_CHARS) != "function":
        return None
    function = fields.object("function")
    if function is None:
        raise fields.missing("function")
    return read_function(function)
