"""What is served, as an OpenAPI 3.1 document. Written by hand and concise: names, types and bounds, no prose twice."""

from __future__ import annotations

from typing import Any

from stoker import __version__
from stoker.dialects.openai_chat import MAX_MESSAGES
from stoker.dialects.openai_common import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOPS,
    MAX_TOP_K,
)
from stoker.dialects.tools import MAX_TOOLS
from stoker.types.sampling import MAX_TOP_LOGPROBS

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}


def _integer(low: int, high: int | None = None) -> Schema:
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _array(items: Schema, longest: int | None = None) -> Schema:
    return {"type": "array", "items": items} | ({} if longest is None else {"maxItems": longest})


def _object(properties: dict[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_STOP: Schema = {**_STRING, "maxLength": MAX_STOP_CHARS}
_IDS = _array(_integer(0))

_SAMPLING: dict[str, Schema] = {
    "model": _STRING,
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _integer(-1, MAX_TOP_K),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 2},
    "logit_bias": {"type": "object", "maxProperties": MAX_BIASES, "additionalProperties": _number(-100, 100)},
    "seed": {"type": "integer"},
    "n": _integer(1, MAX_CHOICES),
    "stop": {"oneOf": [_STOP, _array(_STOP, MAX_STOPS)]},
    "stop_token_ids": _array(_integer(0), MAX_STOP_IDS),
    "max_tokens": {**_integer(1), "description": "Shortened to what fits the context."},
    "min_tokens": _integer(0),
    "ignore_eos": _BOOLEAN,
    "stream": _BOOLEAN,
    "stream_options": _object({"include_usage": _BOOLEAN}),
    "service_tier": {"enum": ["auto", "default", "priority", "flex", "batch"]},
    "prompt_cache_key": {**_STRING, "description": "Session id, if no session header is sent."},
}

_CHAT_INPUT: dict[str, Schema] = {
    "messages": _array(_ref("Message"), MAX_MESSAGES),
    "tools": _array(_OBJECT, MAX_TOOLS),
    "chat_template_kwargs": _OBJECT,
}

_SCHEMAS: dict[str, Schema] = {
    "Message": _object(
        {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"oneOf": [_STRING, _array(_ref("TextPart")), {"type": "null"}]},
            "name": _STRING,
            "reasoning": _STRING,
            "reasoning_content": _STRING,
            "tool_calls": _array(_OBJECT),
            "tool_call_id": _STRING,
        },
        "role",
    ),
    "TextPart": _object({"type": {"const": "text"}, "text": _STRING}, "type", "text"),
    "ChatRequest": _object(
        {
            **_SAMPLING,
            **_CHAT_INPUT,
            "tool_choice": {"oneOf": [{"enum": ["none", "auto", "required"]}, _OBJECT]},
            "parallel_tool_calls": _BOOLEAN,
            "constrain_tools": {
                **_BOOLEAN,
                "description": "Whether calls must fit the declared tools; true if absent.",
            },
            "max_completion_tokens": _integer(1),
            "logprobs": _BOOLEAN,
            "top_logprobs": _integer(0, MAX_TOP_LOGPROBS),
            "response_format": _ref("ResponseFormat"),
            "reasoning_effort": _STRING,
            "thinking": _ref("Thinking"),
            "thinking_token_budget": _integer(0),
        },
        "model",
        "messages",
    ),
    "ResponseFormat": _object(
        {
            "type": {"enum": ["text", "json_object", "json_schema", "regex", "grammar"]},
            "json_schema": _OBJECT,
            "pattern": _STRING,
            "grammar": {**_STRING, "description": "In the notation of Lark; the first rule is `start`."},
        },
        "type",
    ),
    "Thinking": _object({"type": {"enum": ["enabled", "adaptive", "disabled"]}, "budget_tokens": _integer(0)}),
    "CompletionRequest": _object(
        {
            **_SAMPLING,
            "prompt": {"oneOf": [_STRING, _array(_STRING), _IDS, _array(_IDS)]},
            "echo": _BOOLEAN,
            "logprobs": _integer(0, MAX_TOP_LOGPROBS),
        },
        "model",
        "prompt",
    ),
    "Usage": _object(
        {
            "prompt_tokens": _integer(0),
            "completion_tokens": _integer(0),
            "total_tokens": _integer(0),
            "prompt_tokens_details": _object({"cached_tokens": _integer(0)}, "cached_tokens"),
            "completion_tokens_details": _object({"reasoning_tokens": _integer(0)}, "reasoning_tokens"),
        },
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
    ),
    "Completion": _object(
        {
            "id": _STRING,
            "object": {"enum": ["chat.completion", "text_completion"]},
            "created": _integer(0),
            "model": _STRING,
            "system_fingerprint": _STRING,
            "service_tier": _STRING,
            "choices": _array(_OBJECT),
            "usage": _ref("Usage"),
        },
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
    ),
    "Model": _object(
        {
            "id": _STRING,
            "object": {"const": "model"},
            "created": _integer(0),
            "owned_by": _STRING,
            "context_length": _integer(1),
            "max_model_len": _integer(1),
        },
        "id",
        "object",
        "context_length",
    ),
    "Models": _object({"object": {"const": "list"}, "data": _array(_ref("Model"))}, "object", "data"),
    "TokenizeRequest": _object({"model": _STRING, "prompt": _STRING, **_CHAT_INPUT}),
    "Tokens": _object(
        {"count": _integer(0), "max_model_len": _integer(1), "tokens": _IDS}, "count", "max_model_len", "tokens"
    ),
    "DetokenizeRequest": _object({"model": _STRING, "tokens": _IDS}, "tokens"),
    "Prompt": _object({"prompt": _STRING}, "prompt"),
    "Health": _object({"status": _STRING, "stage": _STRING, "fraction": _number(0, 1), "reason": _STRING}, "status"),
    "Error": _object(
        {
            "error": _object(
                {"message": _STRING, "type": _STRING, "param": {"type": ["string", "null"]}, "code": _STRING},
                "message",
                "type",
                "param",
                "code",
            )
        },
        "error",
    ),
}


def _json(schema: Schema, description: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_ERROR = _json(_ref("Error"), "What went wrong; `code` is stable and `param` names the field.")


def _get(
    summary: str, response: str, *, errors: tuple[int, ...] = (), parameters: list[Schema] | None = None
) -> Schema:
    shape = "Health" if response == "Health" else "Error"
    responses = {"200": _json(_ref(response), "OK")}
    responses |= {str(status): _json(_ref(shape), "Not so") for status in errors}
    return {"summary": summary, "responses": responses} | ({} if parameters is None else {"parameters": parameters})


def _post(summary: str, request: str, response: str, *, streams: bool = False) -> Schema:
    answer = _json(_ref(response), "OK")
    if streams:
        answer["content"]["text/event-stream"] = {
            "schema": {"type": "string", "description": "data: JSON chunks, then data: [DONE]"}
        }
    errors = {str(status): _ERROR for status in (400, 401, 404, 408, 413, 500, 503)}
    body = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    return {"summary": summary, "requestBody": body, "responses": {"200": answer, **errors}}


def _text(summary: str) -> Schema:
    answer = {"description": "OK", "content": {"text/plain": {"schema": _STRING}}}
    return {"summary": summary, "responses": {"200": answer}, "security": []}


def document() -> Schema:
    """The whole document, ready to be encoded."""
    model_id = {"name": "id", "in": "path", "required": True, "schema": _STRING}
    public: Schema = {"security": []}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stoker", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {
            "/": {"get": _text("What this is"), "head": _text("Whether it is there")},
            "/openapi.json": {"get": {"summary": "This document", "responses": {"200": _json(_OBJECT, "OK")}} | public},
            "/health/live": {"get": _get("Whether the loops move", "Health", errors=(503,)) | public},
            "/health/ready": {"get": _get("Whether requests are served", "Health", errors=(503,)) | public},
            "/v1/models": {"get": _get("Models served", "Models", errors=(401,))},
            "/v1/models/{id}": {"get": _get("One model", "Model", errors=(401, 404), parameters=[model_id])},
            "/v1/chat/completions": {"post": _post("Continue a chat", "ChatRequest", "Completion", streams=True)},
            "/v1/completions": {"post": _post("Continue a text", "CompletionRequest", "Completion", streams=True)},
            "/v1/tokenize": {"post": _post("Tokens of a text or chat", "TokenizeRequest", "Tokens")},
            "/v1/detokenize": {"post": _post("Text of tokens", "DetokenizeRequest", "Prompt")},
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"header": []}],
    }
