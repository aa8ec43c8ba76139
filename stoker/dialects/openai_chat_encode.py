"""Events -> chat.completion (whole) or chat.completion.chunk (stream) objects.

The stream is the hot path: everything that stays the same within a response is encoded once, and a chunk is that
prefix plus the encoded text.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.dialects.blocks import Blocks
from stoker.dialects.encoder import JSON, Head, finish_name
from stoker.dialects.openai_common import UsageJson
from stoker.dialects.openai_errors import encode_error
from stoker.types.chat import (
    Begun,
    ChatRequest,
    ChoiceDone,
    Done,
    Event,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
)
from stoker.types.errors import StokerError
from stoker.types.usage import Usage


class _Top(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class _Token(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[_Top]


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[_Token]
    refusal: None = None


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True):
    """`arguments_valid` is there, and false, when the arguments are not a JSON object."""

    id: str
    function: _Function
    type: str = "function"
    arguments_valid: bool | msgspec.UnsetType = msgspec.UNSET


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    refusal: None = None
    tool_calls: list[_Call] | msgspec.UnsetType = msgspec.UNSET


class _Choice(msgspec.Struct, frozen=True):
    index: int
    message: _Message
    logprobs: _Logprobs | None
    finish_reason: str


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    choices: list[_Choice]
    usage: UsageJson


def _logprobs(tokens: Sequence[TokenLogprob]) -> _Logprobs:
    return _Logprobs(
        [
            _Token(
                token.text.decode(errors="replace"),
                token.logprob,
                list(token.text),
                [_Top(text.decode(errors="replace"), logprob, list(text)) for _, text, logprob in token.top],
            )
            for token in tokens
        ]
    )


def _message(blocks: Blocks) -> _Message:
    """Reasoning goes by both of its names: clients know one or the other."""
    calls = [
        _Call(call.call_id, _Function(call.name, call.text), arguments_valid=msgspec.UNSET if call.valid else False)
        for call in blocks.calls
    ]
    reasoning = blocks.join("reasoning") or msgspec.UNSET
    return _Message(
        content=blocks.join("text") or (None if calls else ""),
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=calls or msgspec.UNSET,
    )


def _reasoning_delta(text: str) -> bytes:
    encoded = JSON.encode(text)
    return b'{"reasoning":%b,"reasoning_content":%b}' % (encoded, encoded)


def _start_delta(event: ToolCallStart) -> bytes:
    call = JSON.encode(_Call(event.id, _Function(event.name, "")))
    return b'{"tool_calls":[{"index":%d,%b]}' % (event.call, call[1:])


def _arguments_delta(event: ToolCallDelta) -> bytes:
    arguments = JSON.encode(event.arguments)
    return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (event.call, arguments)


def _invalid_delta(event: ToolCallDone) -> bytes:
    return b'{"tool_calls":[{"index":%d,"function":{"arguments":""},"arguments_valid":false}]}' % event.call


class ChatStream:
    """One streamed answer. Each choice opens with its role; a call with its id, name and empty arguments; usage comes
    last and only if asked for."""

    end = b"[DONE]"
    named = False

    def __init__(self, request: ChatRequest, head: Head) -> None:
        tier = "" if request.service_tier is None else f'"service_tier":"{request.service_tier}",'
        self._prefix = (
            f'{{"id":"{head.id}","object":"chat.completion.chunk","created":{head.created},'
            f'"model":{JSON.encode(head.model).decode()},"system_fingerprint":"{head.fingerprint}",{tier}"choices":['
        ).encode()
        self._suffix = b'],"usage":null}' if request.include_usage else b"]}"
        self._include_usage = request.include_usage
        self._opened: set[int] = set()

    def push(self, event: Event) -> Sequence[bytes]:
        match event:
            case Begun():
                return ()
            case TextDelta():
                logprobs = JSON.encode(_logprobs(event.logprobs)) if event.logprobs else b"null"
                delta = b'{"content":%b}' % JSON.encode(event.text)
                return self._choice(event.index, delta, logprobs, b"null")
            case ReasoningDelta():
                logprobs = JSON.encode(_logprobs(event.logprobs)) if event.logprobs else b"null"
                return self._choice(event.index, _reasoning_delta(event.text), logprobs, b"null")
            case ToolCallStart():
                return self._choice(event.index, _start_delta(event), b"null", b"null")
            case ToolCallDelta():
                return self._choice(event.index, _arguments_delta(event), b"null", b"null")
            case ToolCallDone():
                return () if event.valid else self._choice(event.index, _invalid_delta(event), b"null", b"null")
            case ChoiceDone():
                return self._choice(event.index, b"{}", b"null", b'"%b"' % finish_name(event.reason).encode())
            case Done():
                if not self._include_usage:
                    return ()
                return (self._prefix + b'],"usage":%b}' % JSON.encode(UsageJson.of(event.usage)),)

    def error(self, error: StokerError) -> bytes:
        return encode_error(error)

    def _choice(self, index: int, delta: bytes, logprobs: bytes, finish: bytes) -> Sequence[bytes]:
        chunk = self._prefix + (
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, delta, logprobs, finish)
        )
        chunk += self._suffix
        if index in self._opened:
            return (chunk,)
        self._opened.add(index)
        return (*self._choice(index, b'{"role":"assistant","content":""}', b"null", b"null"), chunk)


class ChatWhole:
    """One answer in one object."""

    def __init__(self, request: ChatRequest, head: Head) -> None:
        self._request = request
        self._head = head
        self._choices = [Blocks() for _ in range(request.n)]
        self._reasons = [""] * request.n
        self._usage = Usage()

    def push(self, event: Event) -> None:
        match event:
            case Begun():
                pass
            case ChoiceDone():
                self._reasons[event.index] = finish_name(event.reason)
            case Done():
                self._usage = event.usage
            case _:
                self._choices[event.index].push(event)

    def finish(self) -> bytes:
        asked = self._request.sampling.logprobs is not None
        tier = self._request.service_tier
        return JSON.encode(
            _Response(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                system_fingerprint=self._head.fingerprint,
                service_tier=msgspec.UNSET if tier is None else tier,
                choices=[
                    _Choice(
                        index,
                        _message(blocks),
                        _logprobs(blocks.logprobs) if asked else None,
                        self._reasons[index],
                    )
                    for index, blocks in enumerate(self._choices)
                ],
                usage=UsageJson.of(self._usage),
            )
        )
