"""POST /v1/responses: body -> ResponsesRequest. What comes back is openai_responses_encode's, input items are
openai_responses_input's."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, JsonObject, depth_within, unsupported, wrong_type
from stoker.dialects.openai_common import read_lane, read_session, read_stream, refuse_unsupported
from stoker.dialects.openai_responses_input import read_input
from stoker.dialects.output_format import read_format
from stoker.dialects.sampling import read_max_tokens, read_sampling
from stoker.dialects.thinking import read_thinking
from stoker.dialects.tools import MAX_TOOLS, check_tool_choice, read_function, read_tool_choice
from stoker.types.chat import ChatRequest, Message, Tool
from stoker.types.errors import invalid

MAX_METADATA = 16
MAX_METADATA_CHARS = 512
MAX_INCLUDES = 64
MAX_ECHO = 1 << 20  # bytes of declarations that an answer repeats
MAX_ECHO_DEPTH = 64

_REFUSED = {
    "background": "answers that are made in the background",
    "conversation": "stored conversations, use 'previous_response_id'",
    "prompt": "stored prompts",
    "top_logprobs": "log-probabilities in this dialect, use /v1/chat/completions",
}
_LOGPROBS = "message.output_text.logprobs"
_REPEATED = ("max_output_tokens", "reasoning", "text", "tool_choice", "tools")


class ResponsesRequest(ChatRequest, frozen=True, kw_only=True):
    """`messages` are those of this request alone: `previous` names the response whose conversation goes before them.

    `instructions` go before both and are not part of what `store` keeps. `echo` is what the answer repeats of the
    request, as JSON values. With `sealed`, reasoning is also given in the form that a client sends back unseen.
    """

    instructions: str | None = None
    previous: str | None = None
    store: bool = True
    sealed: bool = False
    echo: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


def decode_responses(body: JsonObject, *, session: str | None) -> ResponsesRequest:
    """Check a body and read it. `session` is what the request's headers say. Raises StokerError (INVALID)."""
    fields = Fields(body)
    refuse_unsupported(fields, _REFUSED)
    include = fields.array("include", longest=MAX_INCLUDES) or []
    if _LOGPROBS in include:
        raise unsupported("include", _REFUSED["top_logprobs"])
    stream, _ = read_stream(fields)
    lane, tier = read_lane(fields)
    model = fields.required_text("model", longest=MAX_NAME_CHARS)
    tools, choice = _read_tools(fields), read_tool_choice(fields)
    check_tool_choice(choice, tools)
    args, budget = read_thinking(fields)
    text = fields.object("text")
    wanted = None if text is None else text.object("format")
    request = ResponsesRequest(
        model=model,
        messages=read_input(fields),
        instructions=fields.text("instructions"),
        previous=fields.text("previous_response_id", longest=MAX_NAME_CHARS),
        store=fields.get("store") is None or fields.boolean("store"),
        sealed="reasoning.encrypted_content" in include,
        tools=tools,
        tool_choice=choice,
        constrain_tools=fields.get("constrain_tools") is None or fields.boolean("constrain_tools"),
        response_format=None if wanted is None else read_format(wanted),
        reasoning_budget=budget,
        template_args=args,
        sampling=read_sampling(fields, logprobs=None, max_tokens=read_max_tokens(fields, "max_output_tokens")),
        stream=stream,
        lane=lane,
        service_tier=tier,
        session=read_session(fields, session),
    )
    return msgspec.structs.replace(request, echo=_echo(fields, request))


def with_history(request: ResponsesRequest, earlier: tuple[Message, ...]) -> ResponsesRequest:
    """The request with its whole conversation: instructions, what went before, what is new."""
    first = () if request.instructions is None else (Message(role="system", content=request.instructions),)
    return msgspec.structs.replace(request, messages=(*first, *earlier, *request.messages))


def _read_tools(fields: Fields) -> tuple[Tool, ...]:
    """Declared functions. Tools of other types are for others to run, so the model is not told of them."""
    given = fields.array("tools", longest=MAX_TOOLS) or []
    items = [Fields.of(item, f"tools[{i}]") for i, item in enumerate(given)]
    return tuple(
        read_function(item) for item in items if item.required_text("type", longest=MAX_NAME_CHARS) == "function"
    )


def _echo(fields: Fields, request: ResponsesRequest) -> dict[str, Any]:
    defaults = {"text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "reasoning": {}}
    repeated = {name: fields.get(name) if fields.get(name) is not None else defaults.get(name) for name in _REPEATED}
    if not depth_within(repeated, MAX_ECHO_DEPTH) or len(msgspec.json.encode(repeated)) > MAX_ECHO:
        repeated |= defaults
    return {
        **repeated,
        "instructions": request.instructions,
        "metadata": _read_metadata(fields),
        "parallel_tool_calls": request.tool_choice.parallel,
        "previous_response_id": request.previous,
        "service_tier": request.service_tier or "default",
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
    }


def _read_metadata(fields: Fields) -> dict[str, str]:
    given = fields.object("metadata")
    if given is None:
        return {}
    if len(given.data) > MAX_METADATA:
        raise invalid("array_above_max_length", f"'metadata' has more than {MAX_METADATA} entries.", param="metadata")
    for name, value in given.data.items():
        if not isinstance(value, str):
            raise wrong_type(given.param(name), "a string", value)
        given.text(name, longest=MAX_METADATA_CHARS)
    return given.data
