"""What is served, as an OpenAPI 3.1 document, written by hand. What goes in and out is in openapi_schemas.py."""

from __future__ import annotations

from stoker import __version__
from stoker.gateway.openapi_schemas import OBJECT, SCHEMAS, STRING, Schema, ref

_CHUNKS = "data: JSON chunks, then data: [DONE]"
_EVENTS = "event: TYPE, data: JSON of that type"


def _json(schema: Schema, description: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_WRONG = "What went wrong; `code` is stable and `param` names the field."


def _get(
    summary: str, response: str, *, errors: tuple[int, ...] = (), parameters: list[Schema] | None = None
) -> Schema:
    shape = "Health" if response == "Health" else "Error"
    responses = {"200": _json(ref(response), "OK")}
    responses |= {str(status): _json(ref(shape), "Not so") for status in errors}
    return {"summary": summary, "responses": responses} | ({} if parameters is None else {"parameters": parameters})


def _post(summary: str, request: str, response: str, *, streams: str = "", error: str = "Error") -> Schema:
    """`streams` says what a stream consists of, if the route has one."""
    answer = _json(ref(response), "OK")
    if streams:
        answer["content"]["text/event-stream"] = {"schema": {**STRING, "description": streams}}
    statuses = (400, 401, 404, 408, 413, 500, 503) if error == "Error" else (400, 401, 404, 408, 413, 500, 503, 529)
    errors = {str(status): _json(ref(error), _WRONG) for status in statuses}
    body = {"required": True, "content": {"application/json": {"schema": ref(request)}}}
    return {"summary": summary, "requestBody": body, "responses": {"200": answer, **errors}}


def _text(summary: str) -> Schema:
    answer = {"description": "OK", "content": {"text/plain": {"schema": STRING}}}
    return {"summary": summary, "responses": {"200": answer}, "security": []}


def document() -> Schema:
    """The whole document, ready to be encoded."""
    model_id = {"name": "id", "in": "path", "required": True, "schema": STRING}
    public: Schema = {"security": []}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stoker", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {
            "/": {"get": _text("What this is"), "head": _text("Whether it is there")},
            "/openapi.json": {"get": {"summary": "This document", "responses": {"200": _json(OBJECT, "OK")}} | public},
            "/health/live": {"get": _get("Whether the loops move", "Health", errors=(503,)) | public},
            "/health/ready": {"get": _get("Whether requests are served", "Health", errors=(503,)) | public},
            "/metrics": {"get": _text("Metrics in Prometheus's format, for clients on this machine")},
            "/v1/models": {"get": _get("Models served", "Models", errors=(401,))},
            "/v1/models/{id}": {"get": _get("One model", "Model", errors=(401, 404), parameters=[model_id])},
            "/v1/chat/completions": {"post": _post("Continue a chat", "ChatRequest", "Completion", streams=_CHUNKS)},
            "/v1/completions": {"post": _post("Continue a text", "CompletionRequest", "Completion", streams=_CHUNKS)},
            "/v1/responses": {"post": _post("Answer", "ResponsesRequest", "Response", streams=_EVENTS)},
            "/v1/messages": {
                "post": _post("Answer", "MessagesRequest", "AnthropicMessage", streams=_EVENTS, error="AnthropicError")
            },
            "/v1/messages/count_tokens": {
                "post": _post("Tokens of a prompt", "MessagesCount", "Count", error="AnthropicError")
            },
            "/v1/tokenize": {"post": _post("Tokens of a text or chat", "TokenizeRequest", "Tokens")},
            "/v1/detokenize": {"post": _post("Text of tokens", "DetokenizeRequest", "Prompt")},
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"header": []}],
    }
