"""Events -> a `message` object (whole) or the events of its stream, which tells of one content block after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.dialects.anthropic_errors import encode_error
from stoker.dialects.blocks import Block, Blocks, Change
from stoker.dialects.encoder import JSON, Head, finish_name
from stoker.types.chat import Begun, ChatRequest, ChoiceDone, Done, Event
from stoker.types.errors import StokerError
from stoker.types.usage import Usage

_PING = b'{"type":"ping"}'
_DELTA = {
    "reasoning": b'{"type":"thinking_delta","thinking":',
    "text": b'{"type":"text_delta","text":',
    "call": b'{"type":"input_json_delta","partial_json":',
}
_REASON = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _OutputDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class _Usage(msgspec.Struct, frozen=True):
    """Anthropic counts exclusively: what the cache gave is no part of `input_tokens`. Nothing is charged for writing to
    the cache."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    output_tokens_details: _OutputDetails
    service_tier: str | None

    @classmethod
    def of(cls, usage: Usage, tier: str | None) -> _Usage:
        details = _OutputDetails(usage.output_reasoning)
        return cls(usage.input_uncached, usage.input_cached, 0, usage.output, details, tier)


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage


class _Count(msgspec.Struct, frozen=True):
    input_tokens: int


def encode_count(tokens: int) -> bytes:
    return JSON.encode(_Count(tokens))


class _Stop(msgspec.Struct, frozen=True):
    stop_reason: str | None = None
    stop_sequence: str | None = None

    @classmethod
    def of(cls, event: ChoiceDone) -> _Stop:
        """`tool_use` goes first: a client that sees it has a call to run, whatever ended the text."""
        by_string = event.stop is not None and event.reason == "stop"
        return cls("stop_sequence" if by_string else _REASON[finish_name(event.reason)], event.stop)


def _opened(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def _whole(block: Block, signature: str) -> dict[str, Any]:
    opened = _opened(block)
    match block.kind:
        case "text":
            return opened | {"text": block.text}
        case "reasoning":
            return opened | {"thinking": block.text, "signature": signature}
        case "call":
            given = _object(block.text) if block.valid else None
            return opened | ({"arguments": block.text, "arguments_valid": False} if given is None else {"input": given})


def _object(text: str) -> msgspec.Raw | None:
    """Arguments as they were written; None if that is no JSON after all."""
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None


class MessagesStream:
    """One streamed answer. Thinking is signed with the id of its answer: what comes back is believed as it is."""

    end = None
    named = True

    def __init__(self, request: ChatRequest, head: Head) -> None:
        self._tier = request.service_tier
        self._head = head
        self._blocks = Blocks()
        self._stop = _Stop()

    def push(self, event: Event) -> Sequence[bytes]:
        match event:
            case Begun():
                usage = _Usage.of(event.usage, self._tier)
                message = _Message(id=self._head.id, model=self._head.model, content=[], usage=usage)
                return [JSON.encode({"type": "message_start", "message": message}), _PING]
            case ChoiceDone():
                self._stop = _Stop.of(event)
                return self._changes(self._blocks.finish())
            case Done():
                usage = _Usage.of(event.usage, self._tier)
                ends = {"type": "message_delta", "delta": self._stop, "usage": usage}
                return [JSON.encode(ends), b'{"type":"message_stop"}']
            case _:
                return self._changes(self._blocks.push(event))

    def error(self, error: StokerError) -> bytes:
        return encode_error(error)

    def _changes(self, changes: Sequence[Change]) -> list[bytes]:
        return [event for what, block, text in changes for event in self._change(what, block, text)]

    def _change(self, what: str, block: Block, text: str) -> list[bytes]:
        match what:
            case "open":
                started = {"type": "content_block_start", "index": block.index, "content_block": _opened(block)}
                return [JSON.encode(started)]
            case "grow":
                return [_delta(block, _DELTA[block.kind], text)]
            case _:
                stopped = b'{"type":"content_block_stop","index":%d%b}' % (
                    block.index,
                    b"" if block.valid else b',"arguments_valid":false',
                )
                if block.kind != "reasoning":
                    return [stopped]
                return [_delta(block, b'{"type":"signature_delta","signature":', self._head.id), stopped]


def _delta(block: Block, start: bytes, text: str) -> bytes:
    return b'{"type":"content_block_delta","index":%d,"delta":%b%b}}' % (block.index, start, JSON.encode(text))


class MessagesWhole:
    """One answer in one object."""

    def __init__(self, request: ChatRequest, head: Head) -> None:
        self._tier = request.service_tier
        self._head = head
        self._blocks = Blocks()
        self._stop = _Stop()
        self._usage = Usage()

    def push(self, event: Event) -> None:
        match event:
            case Begun():
                pass
            case ChoiceDone():
                self._stop = _Stop.of(event)
            case Done():
                self._usage = event.usage
            case _:
                self._blocks.push(event)

    def finish(self) -> bytes:
        return JSON.encode(
            _Message(
                id=self._head.id,
                model=self._head.model,
                content=[_whole(block, self._head.id) for block in self._blocks.whole],
                usage=_Usage.of(self._usage, self._tier),
                stop_reason=self._stop.stop_reason,
                stop_sequence=self._stop.stop_sequence,
            )
        )
