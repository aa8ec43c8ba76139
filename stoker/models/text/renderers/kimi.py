"""Kimi K2, K2-Thinking, K2.5 and K2.6 prompts. The members of the family differ in the values at the end.

A call is written with its id and without its name, which is a part of the id (`functions.NAME:N`): `native_ids` makes
the ids of other providers such, or the model would learn a wrong form from its own history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stoker.models.text.fixed import Fixed, to_json
from stoker.models.text.renderers.kimi_tools import declare_typescript
from stoker.models.text.turns import Call, Conversation, Media, Turn
from stoker.types.errors import invalid

MIDDLE, END = Fixed("<|im_middle|>"), Fixed("<|im_end|>")
OPENS = {"user": Fixed("<|im_user|>"), "assistant": Fixed("<|im_assistant|>")}
SYSTEM = Fixed("<|im_system|>")
THINK, THOUGHT = Fixed("<think>"), Fixed("</think>")
CALLS, CALLS_END = Fixed("<|tool_calls_section_begin|>"), Fixed("<|tool_calls_section_end|>")
CALL, ARGUMENTS, CALL_END = (Fixed(f"<|tool_call_{what}|>") for what in ("begin", "argument_begin", "end"))
PERSONA = "You are Kimi, an AI assistant created by Moonshot AI."
IMAGE = "<|media_pad|>"
PLACEHOLDERS = {
    Media.IMAGE: Fixed(f"<|media_begin|>image<|media_content|>{IMAGE}<|media_end|>\n"),
    Media.VIDEO: Fixed("<|kimi_k25_video_placeholder|>\n"),
}


@dataclass(frozen=True)
class Kimi:
    """`declare` writes the tool declarations. `persona`: a conversation without system message gets one. `thinks`:
    answers have a place for reasoning; `opens`: the prompt opens it. `indent` stands before every tool result.
    `unended`: a conversation that asks for no answer leaves its last turn open."""

    declare: Callable[[Sequence[dict[str, Any]]], str]
    persona: bool
    thinks: bool
    opens: bool
    indent: str = ""
    unended: bool = False
    media: Mapping[Media, Fixed] = field(default_factory=dict)

    def render(self, conversation: Conversation) -> Iterator[str]:
        thinking = conversation.switch("thinking", "enable_thinking", default=True)
        asks = conversation.switch("add_generation_prompt", default=False)
        if conversation.tools:
            yield from (SYSTEM, "tool_declare", MIDDLE, self.declare(conversation.tools), END)
        if self.persona and conversation.turns and conversation.turns[0].role not in ("system", "developer"):
            yield from (SYSTEM, "system", MIDDLE, PERSONA, END)
        kept = 0 if conversation.switch("preserve_thinking", default=False) else _after_last_answer(conversation.turns)
        for place, turn in enumerate(conversation.turns):
            role = "system" if turn.role == "developer" else turn.role
            yield from (OPENS.get(role, SYSTEM), turn.name or role, MIDDLE)
            if role == "assistant":
                yield from self._answer(turn, keep=thinking and place >= kept)
            elif role == "tool":
                yield f"## Return of {turn.call_id}\n{self.indent}"
                yield from self._content(turn)
            else:
                yield from self._content(turn)
            if asks or not self.unended or place + 1 < len(conversation.turns):
                yield END
        if asks:
            yield from (OPENS["assistant"], "assistant", MIDDLE)
            if self.opens:
                yield from (THINK,) if thinking else (THINK, THOUGHT)

    def _answer(self, turn: Turn, *, keep: bool) -> Iterator[str]:
        if self.thinks:
            yield from (THINK, (turn.reasoning or "") if keep else "", THOUGHT)
        yield from self._content(turn)
        if turn.calls:
            yield CALLS
            for call in turn.calls:
                arguments = call.arguments if isinstance(call.arguments, str) else to_json(call.arguments)
                yield from (CALL, call.id, ARGUMENTS, arguments, CALL_END)
            yield CALLS_END

    def _content(self, turn: Turn) -> Iterator[str]:
        for part in turn.parts:
            if not isinstance(part, Media):
                yield part
            elif part in self.media:
                yield self.media[part]
            else:
                raise invalid("unsupported_content", f"this model reads no {part}", param="messages")


def native_ids(conversation: Conversation) -> Conversation:
    """The same conversation with every call's id `functions.NAME:N`, and the results' ids with it.

    An id of that form that names its own function and is new stays, so that what the model wrote is what it reads
    again. Others get their place among all calls of the conversation as N. What comes later changes no earlier id.
    """
    taken: set[str] = set()
    latest: dict[str, str] = {}
    waiting: dict[str, deque[str]] = {}  # of the calls just made; a client may give several of them the same id
    count = 0
    turns: list[Turn] = []
    for turn in conversation.turns:
        if turn.calls:
            waiting = {call.id: deque() for call in turn.calls}
            calls: list[Call] = []
            for call in turn.calls:
                native = _native_id(call, count, taken)
                taken.add(native)
                waiting[call.id].append(native)
                latest[call.id] = native
                calls.append(msgspec.structs.replace(call, id=native))
                count += 1
            turn = msgspec.structs.replace(turn, calls=tuple(calls))
        elif turn.role == "tool":
            answers = waiting.get(turn.call_id)
            native = answers.popleft() if answers else latest.get(turn.call_id, turn.call_id)
            turn = msgspec.structs.replace(turn, call_id=native)
        turns.append(turn)
    return msgspec.structs.replace(conversation, turns=tuple(turns))


def _native_id(call: Call, place: int, taken: set[str]) -> str:
    prefix = f"functions.{call.name}:"
    number = call.id.removeprefix(prefix)
    if call.id.startswith(prefix) and number.isascii() and number.isdecimal() and call.id not in taken:
        return call.id
    while f"{prefix}{place}" in taken:
        place += 1
    return f"{prefix}{place}"


def _after_last_answer(turns: Sequence[Turn]) -> int:
    """The place after the last answer without calls: reasoning up to there is over and done with."""
    answers = (place + 1 for place, turn in enumerate(turns) if turn.role == "assistant" and not turn.calls)
    return max(answers, default=0)


K2 = Kimi(
    declare=lambda tools: f"\n  # Tools\n  {to_json(tools)}",
    persona=True,
    thinks=False,
    opens=False,
    indent="    ",
    unended=True,
)
K2_THINKING = Kimi(declare=to_json, persona=True, thinks=True, opens=False)
K25 = Kimi(declare=declare_typescript, persona=False, thinks=True, opens=True, media=PLACEHOLDERS)
