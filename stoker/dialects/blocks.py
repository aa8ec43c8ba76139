"""The events of one choice gathered into what a whole answer shows: blocks of reasoning, text and calls, in order.

Owns no JSON. Says what changed with each event, for dialects whose streams tell of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from stoker.types.chat import (
    Delta,
    Message,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
)


@dataclass
class Block:
    """`text` so far; of a call its arguments, with `call_id` and `name`.

    complete  nothing is missing: only a call that broke off is not
    valid     a call's arguments are a JSON object
    """

    index: int
    kind: Literal["reasoning", "text", "call"]
    call_id: str = ""
    name: str = ""
    complete: bool = True
    valid: bool = True
    parts: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self.parts)


# what became of a block, and the text that came to it; the block itself may already be further
Change = tuple[Literal["open", "grow", "close"], Block, str]


class Blocks:
    """One choice. One block at a time is open; `logprobs` are those of all its tokens in order."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.logprobs: list[TokenLogprob] = []
        self._open: Block | None = None

    def push(self, event: Delta) -> Sequence[Change]:
        match event:
            case ReasoningDelta() | TextDelta():
                self.logprobs.extend(event.logprobs)
                if not event.text:
                    return ()
                kind = "text" if isinstance(event, TextDelta) else "reasoning"
                changes = [] if self._open and self._open.kind == kind else self._begin(Block(len(self.all), kind))
                return [*changes, self._grow(event.text)]
            case ToolCallStart():
                return self._begin(Block(len(self.all), "call", event.id, event.name, complete=False))
            case ToolCallDelta():
                return [self._grow(event.arguments)] if event.arguments else ()
            case ToolCallDone():
                block = self.all[-1]
                block.complete, block.valid = event.complete, event.valid
                return self.finish()

    def finish(self) -> list[Change]:
        """Nothing more comes."""
        block, self._open = self._open, None
        return [] if block is None else [("close", block, "")]

    def _begin(self, block: Block) -> list[Change]:
        changes = self.finish()
        self.all.append(block)
        self._open = block
        return [*changes, ("open", block, "")]

    def _grow(self, text: str) -> Change:
        assert self._open is not None, "nothing comes to a block that is closed"
        self._open.parts.append(text)
        return "grow", self._open, text

    @property
    def whole(self) -> list[Block]:
        """What a whole answer has: a call that broke off was streamed in part and is left out."""
        return [block for block in self.all if block.complete]

    def join(self, kind: Literal["reasoning", "text"]) -> str:
        return "".join(block.text for block in self.all if block.kind == kind)

    @property
    def calls(self) -> list[Block]:
        return [block for block in self.whole if block.kind == "call"]

    @property
    def message(self) -> Message:
        """The answer as a turn of the conversation."""
        calls = tuple(ToolCall(id=block.call_id, name=block.name, arguments=block.text) for block in self.calls)
        text = self.join("text")
        return Message(
            role="assistant",
            content=None if calls and not text else text,
            reasoning=self.join("reasoning") or None,
            tool_calls=calls,
        )
