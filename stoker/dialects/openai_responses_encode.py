"""Events -> a `response` object (whole) or the events of its stream.

A stream tells of items: one opens, grows and closes before the next. Everything that a delta repeats is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.dialects.blocks import Block, Blocks, Change
from stoker.dialects.encoder import JSON, Head, finish_name
from stoker.dialects.openai_responses import ResponsesRequest
from stoker.dialects.openai_responses_input import seal
from stoker.types.chat import Begun, ChoiceDone, Done, Event
from stoker.types.errors import StokerError
from stoker.types.usage import Usage

_PREFIX = {"reasoning": "rs", "text": "msg", "call": "fc"}
_PART = {"reasoning": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}


class _Cached(msgspec.Struct, frozen=True):
    cached_tokens: int


class _Reasoned(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: _Cached
    output_tokens: int
    output_tokens_details: _Reasoned
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> _Usage:
        return cls(
            usage.input, _Cached(usage.input_cached), usage.output, _Reasoned(usage.output_reasoning), usage.total
        )


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    model: str
    output: list[dict[str, Any]]
    usage: _Usage | None = None
    background: bool = False


class _Answer:
    """What is known of one answer, and how its objects look."""

    def __init__(self, request: ResponsesRequest, head: Head) -> None:
        self.id = head.id
        self._sealed = request.sealed
        self._head = head
        self._echo = JSON.encode({**request.echo, "store": request.store})
        self.blocks = Blocks()
        self.incomplete = False
        self.usage: Usage | None = None

    def end(self, event: ChoiceDone | Done) -> None:
        if isinstance(event, Done):
            self.usage = event.usage
        else:
            self.incomplete = finish_name(event.reason) == "length"

    def response(self, status: str, error: StokerError | None = None) -> bytes:
        """The object as it is now; it has output only at its end."""
        response = _Response(
            id=self.id,
            created_at=self._head.created,
            status=status,
            error=None if error is None else {"code": error.code, "message": error.message},
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            model=self._head.model,
            output=[] if status == "in_progress" else [self.item(block, closed=True) for block in self.blocks.whole],
            usage=None if self.usage is None else _Usage.of(self.usage),
        )
        return JSON.encode(response)[:-1] + b"," + self._echo[1:]

    @property
    def status(self) -> str:
        return "incomplete" if self.incomplete else "completed"

    def item_id(self, block: Block) -> str:
        return f"{_PREFIX[block.kind]}_{self.id.removeprefix('resp_')}{block.index:02x}"

    def part(self, block: Block, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _PART[block.kind], "text": text}
        return part | {"annotations": [], "logprobs": []} if block.kind == "text" else part

    def item(self, block: Block, *, closed: bool) -> dict[str, Any]:
        status = "in_progress" if not closed else "completed" if block.complete else "incomplete"
        item: dict[str, Any] = {"id": self.item_id(block), "status": status}
        text = block.text if closed else ""
        content = [self.part(block, text)] if closed else []
        match block.kind:
            case "text":
                return item | {"type": "message", "role": "assistant", "content": content}
            case "reasoning":
                item |= {"type": "reasoning", "summary": [], "content": content}
                return item | {"encrypted_content": seal(text)} if self._sealed and closed else item
            case "call":
                item |= {"type": "function_call", "call_id": block.call_id, "name": block.name, "arguments": text}
                return item if block.valid or not closed else item | {"arguments_valid": False}


class ResponsesStream:
    """One streamed answer."""

    end = None
    named = True

    def __init__(self, request: ResponsesRequest, head: Head) -> None:
        self._answer = _Answer(request, head)
        self._number = 0
        self._delta = (b"", b"")

    @property
    def id(self) -> str:
        return self._answer.id

    @property
    def blocks(self) -> Blocks:
        return self._answer.blocks

    def push(self, event: Event) -> Sequence[bytes]:
        match event:
            case Begun():
                now = self._answer.response("in_progress")
                return [self._response("created", now), self._response("in_progress", now)]
            case ChoiceDone():
                self._answer.end(event)
                return self._changes(self.blocks.finish())
            case Done():
                self._answer.end(event)
                status = self._answer.status
                return [self._response(status, self._answer.response(status))]
            case _:
                return self._changes(self.blocks.push(event))

    def error(self, error: StokerError) -> bytes:
        return self._response("failed", self._answer.response("failed", error))

    def _changes(self, changes: Sequence[Change]) -> list[bytes]:
        return [event for what, block, text in changes for event in self._change(what, block, text)]

    def _change(self, what: str, block: Block, text: str) -> list[bytes]:
        if what == "grow":
            before, after = self._delta
            self._number += 1
            return [b"%b%d,%b%b%b" % (before, self._number - 1, b'"delta":', JSON.encode(text), after)]
        where: dict[str, Any] = {"item_id": self._answer.item_id(block), "output_index": block.index}
        if block.kind != "call":
            where["content_index"] = 0
        added = {"output_index": block.index, "item": self._answer.item(block, closed=what == "close")}
        part = where | {"part": self._answer.part(block, block.text if what == "close" else "")}
        if what == "open":
            self._set_delta(block, where)
            events = [self._event("output_item.added", added)]
            return events if block.kind == "call" else [*events, self._event("content_part.added", part)]
        done = where | ({"arguments": block.text} if block.kind == "call" else {"text": block.text})
        if block.kind == "text":
            done["logprobs"] = []
        events = [self._event(f"{_PART[block.kind]}.done", done)]
        if block.kind != "call":
            events.append(self._event("content_part.done", part))
        return [*events, self._event("output_item.done", added)]

    def _set_delta(self, block: Block, where: dict[str, Any]) -> None:
        """All that the deltas of `block` repeat: before the sequence number, and after the text."""
        rest = JSON.encode(where | ({"logprobs": []} if block.kind == "text" else {}))
        self._delta = (b'{"type":"response.%b.delta","sequence_number":' % _PART[block.kind].encode(), b"," + rest[1:])

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        self._number += 1
        return JSON.encode({"type": f"response.{name}", "sequence_number": self._number - 1, **fields})

    def _response(self, name: str, response: bytes) -> bytes:
        return self._event(name, {"response": msgspec.Raw(response)})


class ResponsesWhole:
    """One answer in one object."""

    def __init__(self, request: ResponsesRequest, head: Head) -> None:
        self._answer = _Answer(request, head)

    @property
    def id(self) -> str:
        return self._answer.id

    @property
    def blocks(self) -> Blocks:
        return self._answer.blocks

    def push(self, event: Event) -> None:
        match event:
            case Begun():
                pass
            case ChoiceDone() | Done():
                self._answer.end(event)
            case _:
                self.blocks.push(event)

    def finish(self) -> bytes:
        return self._answer.response(self._answer.status)
