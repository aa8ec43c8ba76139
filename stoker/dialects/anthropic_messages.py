"""POST /v1/messages and /v1/messages/count_tokens: body -> ChatRequest. Turns are anthropic_turns', what comes back is
anthropic_encode's."""

from __future__ import annotations

import json

from stoker.dialects.anthropic_turns import read_turns
from stoker.dialects.fields import MAX_NAME_CHARS, Fields, JsonObject
from stoker.dialects.output_format import read_format
from stoker.dialects.sampling import MAX_STOP_CHARS, MAX_STOPS, read_max_tokens, read_sampling
from stoker.dialects.thinking import read_thinking
from stoker.dialects.tools import MAX_TOOLS, check_tool_choice, read_function
from stoker.types.chat import ChatRequest, Tool, ToolChoice
from stoker.types.errors import invalid
from stoker.types.lane import Lane

MAX_USER_CHARS = 1024

# service_tier -> (lane, what the response says was used)
_TIERS = {
    "auto": (Lane.STANDARD, "standard"),
    "standard_only": (Lane.STANDARD, "standard"),
    "priority": (Lane.INTERACTIVE, "priority"),
    "batch": (Lane.BATCH, "batch"),
}


def decode_messages(body: JsonObject, *, session: str | None) -> ChatRequest:
    """Check a body and read it. `session` is what the request's headers say. Raises StokerError (INVALID)."""
    fields = Fields(body)
    max_tokens = read_max_tokens(fields, "max_tokens")
    if max_tokens is None:
        raise fields.missing("max_tokens")
    return _read(fields, session, max_tokens)


def decode_count(body: JsonObject) -> ChatRequest:
    """A request of which only the prompt is to be counted."""
    return _read(Fields(body), None, None)


def _read(fields: Fields, session: str | None, max_tokens: int | None) -> ChatRequest:
    tier = fields.choice("service_tier", _TIERS) or "auto"
    lane, used = _TIERS[tier]
    model = fields.required_text("model", longest=MAX_NAME_CHARS)
    tools, choice = _read_tools(fields), _read_choice(fields)
    check_tool_choice(choice, tools)
    output = fields.object("output_config")
    wanted = None if output is None else output.object("format")
    effort = None if output is None else output.text("effort", longest=MAX_NAME_CHARS)
    args, budget = read_thinking(fields, effort=effort)
    return ChatRequest(
        model=model,
        messages=read_turns(fields),
        tools=tools,
        tool_choice=choice,
        constrain_tools=fields.get("constrain_tools") is None or fields.boolean("constrain_tools"),
        response_format=None if wanted is None else read_format(wanted),
        reasoning_budget=budget,
        template_args=args,
        sampling=read_sampling(fields, logprobs=None, max_tokens=max_tokens),
        stop=_read_stop(fields),
        stream=fields.boolean("stream"),
        lane=lane,
        service_tier=used,
        session=session or _read_session(fields),
    )


def _read_tools(fields: Fields) -> tuple[Tool, ...]:
    """Declared functions. Tools with a type of their own are for others to run, so the model is not told of them."""
    given = fields.array("tools", longest=MAX_TOOLS) or []
    items = [Fields.of(item, f"tools[{i}]") for i, item in enumerate(given)]
    return tuple(
        read_function(item, "input_schema")
        for item in items
        if item.text("type", longest=MAX_NAME_CHARS) in (None, "custom")
    )


def _read_choice(fields: Fields) -> ToolChoice:
    choice = fields.object("tool_choice")
    if choice is None:
        return ToolChoice()
    parallel = not choice.boolean("disable_parallel_tool_use")
    match choice.choice("type", ("auto", "any", "tool", "none")):
        case None:
            raise choice.missing("type")
        case "tool":
            name = choice.required_text("name", longest=MAX_NAME_CHARS)
            return ToolChoice(mode="required", names=(name,), parallel=parallel)
        case "any":
            return ToolChoice(mode="required", parallel=parallel)
        case "none":
            return ToolChoice(mode="none", parallel=parallel)
        case _:
            return ToolChoice(parallel=parallel)


def _read_stop(fields: Fields) -> tuple[str, ...]:
    stops = fields.array("stop_sequences", longest=MAX_STOPS) or []
    for position, stop in enumerate(stops):
        param = f"stop_sequences[{position}]"
        if not isinstance(stop, str) or len(stop) > MAX_STOP_CHARS:
            raise invalid("invalid_value", f"'{param}' must be a string of {MAX_STOP_CHARS} characters.", param=param)
    return tuple(stop for stop in stops if stop)


def _read_session(fields: Fields) -> str | None:
    """Claude Code puts a JSON object with a session id into the user id."""
    metadata = fields.object("metadata")
    user = None if metadata is None else metadata.text("user_id", longest=MAX_USER_CHARS)
    try:
        match json.loads(user or ""):
            case {"session_id": str(session)} if session:
                return session[:MAX_NAME_CHARS]
            case _:
                return None
    except (ValueError, RecursionError):
        return None
