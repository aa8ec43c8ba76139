"""The events of one choice gathered into what a whole answer shows: blocks of reasoning, text and calls, in order.

Owns no JSON. A call that broke off was streamed in part and is no block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stoker.types.chat import (
    Delta,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
)


@dataclass
class ReasoningBlock:
    parts: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class TextBlock:
    parts: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class CallBlock:
    id: str
    name: str
    parts: list[str] = field(default_factory=list[str])
    complete: bool = False
    valid: bool = True

    @property
    def arguments(self) -> str:
        return "".join(self.parts)


Block = ReasoningBlock | TextBlock | CallBlock


class Blocks:
    """One choice. `logprobs` are those of all its tokens in order."""

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprob] = []
        self._blocks: list[Block] = []
        self._calls: list[CallBlock] = []

    def push(self, event: Delta) -> None:
        match event:
            case ReasoningDelta():
                self._part(ReasoningBlock, event)
            case TextDelta():
                self._part(TextBlock, event)
            case ToolCallStart():
                call = CallBlock(event.id, event.name)
                self._blocks.append(call)
                self._calls.append(call)
            case ToolCallDelta():
                self._calls[event.call].parts.append(event.arguments)
            case ToolCallDone():
                self._calls[event.call].complete = event.complete
                self._calls[event.call].valid = event.valid

    def _part(self, kind: type[ReasoningBlock] | type[TextBlock], event: ReasoningDelta | TextDelta) -> None:
        self.logprobs.extend(event.logprobs)
        if not event.text:
            return
        if not (self._blocks and isinstance(self._blocks[-1], kind)):
            self._blocks.append(kind())
        self._blocks[-1].parts.append(event.text)

    def __iter__(self) -> Iterator[Block]:
        return (block for block in self._blocks if not isinstance(block, CallBlock) or block.complete)

    @property
    def text(self) -> str:
        return "".join(block.text for block in self if isinstance(block, TextBlock))

    @property
    def reasoning(self) -> str:
        return "".join(block.text for block in self if isinstance(block, ReasoningBlock))

    @property
    def calls(self) -> list[CallBlock]:
        return [block for block in self if isinstance(block, CallBlock)]
