"""POST /v1/tokenize and /v1/detokenize, in vLLM's shapes. OpenAI has no such routes."""

from __future__ import annotations

import msgspec

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, JsonObject
from stoker.dialects.openai_chat import read_messages, read_tools
from stoker.dialects.openai_completions import MAX_PROMPT_IDS
from stoker.dialects.sampling import read_token_ids
from stoker.dialects.thinking import read_thinking
from stoker.types.chat import ChatRequest, CompletionRequest


class _Tokens(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]


class _Prompt(msgspec.Struct, frozen=True):
    prompt: str


def decode_tokenize(body: JsonObject) -> ChatRequest | CompletionRequest:
    """What would be generated from: `prompt` (a string) or `messages` with `tools`."""
    fields = Fields(body)
    model = fields.text("model", longest=MAX_NAME_CHARS) or ""
    if fields.get("messages") is not None:
        return ChatRequest(
            model=model,
            messages=read_messages(fields),
            tools=read_tools(fields),
            template_args=read_thinking(fields)[0],
        )
    return CompletionRequest(model=model, prompts=(fields.required_text("prompt"),))


def encode_tokens(tokens: list[int], context: int) -> bytes:
    return msgspec.json.encode(_Tokens(len(tokens), context, tokens))


def decode_detokenize(body: JsonObject) -> tuple[str, tuple[int, ...]]:
    """(model or empty, token ids)"""
    fields = Fields(body)
    given = fields.array("tokens", longest=MAX_PROMPT_IDS)
    if given is None:
        raise fields.missing("tokens")
    return fields.text("model", longest=MAX_NAME_CHARS) or "", read_token_ids(given, "tokens")


def encode_prompt(text: str) -> bytes:
    return msgspec.json.encode(_Prompt(text))
