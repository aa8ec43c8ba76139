"""The schemas of the OpenAPI document: names, types and bounds of what goes in and out, no prose twice."""

from __future__ import annotations

from typing import Any

from stoker.dialects.openai_chat import MAX_MESSAGES
from stoker.dialects.openai_common import MAX_CHOICES
from stoker.dialects.openai_responses_input import MAX_ITEMS
from stoker.dialects.sampling import MAX_BIASES, MAX_STOP_CHARS, MAX_STOP_IDS, MAX_STOPS, MAX_TOP_K
from stoker.dialects.tools import MAX_TOOLS
from stoker.types.sampling import MAX_TOP_LOGPROBS

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def integer(low: int, high: int | None = None) -> Schema:
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


def number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def array(items: Schema, longest: int | None = None) -> Schema:
    return {"type": "array", "items": items} | ({} if longest is None else {"maxItems": longest})


def obj(properties: dict[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_STOP: Schema = {**STRING, "maxLength": MAX_STOP_CHARS}
_IDS = array(integer(0))
_MODEL_HEALTH = obj(
    {
        "status": {"enum": ["ready", "starting", "down", "stuck"]},
        "stage": STRING,
        "fraction": number(0, 1),
        "reason": STRING,
        "replicas": {"type": "object", "additionalProperties": OBJECT},
    },
    "status",
)

_SAMPLING: dict[str, Schema] = {
    "model": STRING,
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "top_k": integer(-1, MAX_TOP_K),
    "min_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 2},
    "logit_bias": {"type": "object", "maxProperties": MAX_BIASES, "additionalProperties": number(-100, 100)},
    "seed": {"type": "integer"},
    "n": integer(1, MAX_CHOICES),
    "stop": {"oneOf": [_STOP, array(_STOP, MAX_STOPS)]},
    "stop_token_ids": array(integer(0), MAX_STOP_IDS),
    "max_tokens": {**integer(1), "description": "Shortened to what fits the context."},
    "min_tokens": integer(0),
    "ignore_eos": BOOLEAN,
    "stream": BOOLEAN,
    "stream_options": obj({"include_usage": BOOLEAN}),
    "service_tier": {"enum": ["auto", "default", "priority", "flex", "batch"]},
    "prompt_cache_key": {**STRING, "description": "Session id, if no session header is sent."},
}

_CHAT_INPUT: dict[str, Schema] = {
    "messages": array(ref("Message"), MAX_MESSAGES),
    "tools": array(OBJECT, MAX_TOOLS),
    "chat_template_kwargs": OBJECT,
}

_ANTHROPIC_PROMPT: dict[str, Schema] = {
    "model": STRING,
    "system": {"oneOf": [STRING, array(OBJECT)]},
    "messages": array(ref("Turn"), MAX_MESSAGES),
    "tools": array(OBJECT, MAX_TOOLS),
    "tool_choice": OBJECT,
    "thinking": ref("Thinking"),
    "output_config": OBJECT,
}

SCHEMAS: dict[str, Schema] = {
    "Message": obj(
        {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"oneOf": [STRING, array({"oneOf": [ref("TextPart"), ref("ImagePart")]}), {"type": "null"}]},
            "name": STRING,
            "reasoning": STRING,
            "reasoning_content": STRING,
            "tool_calls": array(OBJECT),
            "tool_call_id": STRING,
        },
        "role",
    ),
    "TextPart": obj({"type": {"const": "text"}, "text": STRING}, "type", "text"),
    "ImagePart": obj(
        {
            "type": {"const": "image_url"},
            "image_url": obj(
                {
                    "url": {**STRING, "description": "https://... or data:image/png;base64,..."},
                    "detail": {"enum": ["auto", "low", "high", "original"]},
                },
                "url",
            ),
        },
        "type",
        "image_url",
    ),
    "ChatRequest": obj(
        {
            **_SAMPLING,
            **_CHAT_INPUT,
            "tool_choice": {"oneOf": [{"enum": ["none", "auto", "required"]}, OBJECT]},
            "parallel_tool_calls": BOOLEAN,
            "constrain_tools": {
                **BOOLEAN,
                "description": "Whether calls must fit the declared tools; true if absent.",
            },
            "max_completion_tokens": integer(1),
            "logprobs": BOOLEAN,
            "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
            "response_format": ref("ResponseFormat"),
            "reasoning_effort": STRING,
            "thinking": ref("Thinking"),
            "thinking_token_budget": integer(0),
        },
        "model",
        "messages",
    ),
    "ResponseFormat": obj(
        {
            "type": {"enum": ["text", "json_object", "json_schema", "regex", "grammar"]},
            "json_schema": OBJECT,
            "pattern": STRING,
            "grammar": {**STRING, "description": "In the notation of Lark; the first rule is `start`."},
        },
        "type",
    ),
    "Thinking": obj({"type": {"enum": ["enabled", "adaptive", "disabled"]}, "budget_tokens": integer(0)}),
    "CompletionRequest": obj(
        {
            **_SAMPLING,
            "prompt": {"oneOf": [STRING, array(STRING), _IDS, array(_IDS)]},
            "echo": BOOLEAN,
            "logprobs": integer(0, MAX_TOP_LOGPROBS),
        },
        "model",
        "prompt",
    ),
    "Usage": obj(
        {
            "prompt_tokens": integer(0),
            "completion_tokens": integer(0),
            "total_tokens": integer(0),
            "prompt_tokens_details": obj({"cached_tokens": integer(0)}, "cached_tokens"),
            "completion_tokens_details": obj({"reasoning_tokens": integer(0)}, "reasoning_tokens"),
        },
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
    ),
    "Completion": obj(
        {
            "id": STRING,
            "object": {"enum": ["chat.completion", "text_completion"]},
            "created": integer(0),
            "model": STRING,
            "system_fingerprint": STRING,
            "service_tier": STRING,
            "choices": array(OBJECT),
            "usage": ref("Usage"),
        },
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
    ),
    "ResponsesRequest": obj(
        {
            "model": STRING,
            "input": {"oneOf": [STRING, array(OBJECT, MAX_ITEMS)]},
            "instructions": STRING,
            "previous_response_id": STRING,
            "store": {**BOOLEAN, "description": "In memory, for a while, if the server allows it; true if absent."},
            "tools": array(OBJECT, MAX_TOOLS),
            "tool_choice": {"oneOf": [{"enum": ["none", "auto", "required"]}, OBJECT]},
            "parallel_tool_calls": BOOLEAN,
            "reasoning": OBJECT,
            "include": array(STRING),
            "text": obj({"format": ref("ResponseFormat")}),
            "max_output_tokens": integer(1),
            "temperature": number(0, 2),
            "top_p": number(0, 1),
            "metadata": OBJECT,
            "stream": BOOLEAN,
            "service_tier": STRING,
            "prompt_cache_key": STRING,
        },
        "model",
        "input",
    ),
    "Response": obj(
        {
            "id": STRING,
            "object": {"const": "response"},
            "created_at": integer(0),
            "status": {"enum": ["completed", "incomplete"]},
            "model": STRING,
            "output": array(OBJECT),
            "usage": OBJECT,
        },
        "id",
        "object",
        "status",
        "output",
        "usage",
    ),
    "MessagesRequest": obj(
        {
            **_ANTHROPIC_PROMPT,
            "max_tokens": {**integer(1), "description": "Shortened to what fits the context."},
            "temperature": number(0, 2),
            "top_p": number(0, 1),
            "top_k": integer(-1, MAX_TOP_K),
            "stop_sequences": array(_STOP, MAX_STOPS),
            "stream": BOOLEAN,
            "metadata": OBJECT,
            "service_tier": {"enum": ["auto", "standard_only", "priority", "batch"]},
        },
        "model",
        "messages",
        "max_tokens",
    ),
    "MessagesCount": obj(_ANTHROPIC_PROMPT, "model", "messages"),
    "Turn": obj(
        {"role": {"enum": ["user", "assistant", "system"]}, "content": {"oneOf": [STRING, array(OBJECT)]}},
        "role",
        "content",
    ),
    "AnthropicMessage": obj(
        {
            "id": STRING,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": STRING,
            "content": array(OBJECT),
            "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
            "stop_sequence": {"type": ["string", "null"]},
            "usage": OBJECT,
        },
        "id",
        "type",
        "role",
        "content",
        "stop_reason",
        "usage",
    ),
    "Count": obj({"input_tokens": integer(0)}, "input_tokens"),
    "AnthropicError": obj(
        {
            "type": {"const": "error"},
            "error": obj({"type": STRING, "message": STRING, "code": STRING}, "type", "message"),
        },
        "type",
        "error",
    ),
    "Model": obj(
        {
            "id": STRING,
            "object": {"const": "model"},
            "created": integer(0),
            "owned_by": STRING,
            "root": STRING,
            "context_length": integer(1),
            "max_model_len": integer(1),
        },
        "id",
        "object",
        "context_length",
    ),
    "Models": obj({"object": {"const": "list"}, "data": array(ref("Model"))}, "object", "data"),
    "TokenizeRequest": obj({"model": STRING, "prompt": STRING, **_CHAT_INPUT}),
    "Tokens": obj(
        {"count": integer(0), "max_model_len": integer(1), "tokens": _IDS}, "count", "max_model_len", "tokens"
    ),
    "DetokenizeRequest": obj({"model": STRING, "tokens": _IDS}, "tokens"),
    "Prompt": obj({"prompt": STRING}, "prompt"),
    "Health": obj({"status": STRING, "models": {"type": "object", "additionalProperties": _MODEL_HEALTH}}, "status"),
    "Error": obj(
        {
            "error": obj(
                {"message": STRING, "type": STRING, "param": {"type": ["string", "null"]}, "code": STRING},
                "message",
                "type",
                "param",
                "code",
            )
        },
        "error",
    ),
}
