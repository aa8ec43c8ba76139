"""Event lists as a parser makes them, for tests that hold an encoder's stream against its whole answer."""

from __future__ import annotations

from hypothesis import strategies as st

from stoker.types.chat import (
    Begun,
    ChoiceDone,
    Done,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
)
from stoker.types.usage import Usage

USAGE = Usage(input_uncached=5, input_cached=7, output_text=11, output_reasoning=3)


@st.composite
def _choice(draw: st.DrawFn, index: int) -> list[Event]:
    pieces = st.lists(st.text(max_size=6), max_size=3)
    events: list[Event] = [ReasoningDelta(index=index, text=text) for text in draw(pieces)]
    whole = 0
    for call in range(draw(st.integers(0, 3))):
        events += [TextDelta(index=index, text=text) for text in draw(pieces)]
        events.append(
            ToolCallStart(index=index, call=call, id=f"functions.f:{index}{call}", name=draw(st.text(max_size=4)))
        )
        events += [ToolCallDelta(index=index, call=call, arguments=text) for text in ("{", *draw(pieces))]
        if draw(st.integers(0, 9)) == 0:
            events.append(ToolCallDone(index=index, call=call, complete=False, valid=False))
            return [*events, ChoiceDone(index=index, reason="length")]
        whole += 1
        events.append(ToolCallDone(index=index, call=call, valid=draw(st.booleans())))
    events += [TextDelta(index=index, text=text) for text in draw(pieces)]
    reason = draw(st.sampled_from(["length", "tool_calls" if whole else "stop"]))
    return [*events, ChoiceDone(index=index, reason=reason)]


@st.composite
def scripts(draw: st.DrawFn, choices: int = 1) -> list[Event]:
    """All events of a request: those of its choices merged in any order that keeps each choice's own."""
    waiting = [draw(_choice(index)) for index in range(choices)]
    merged: list[Event] = []
    while any(waiting):
        which = draw(st.sampled_from([index for index, events in enumerate(waiting) if events]))
        merged.append(waiting[which].pop(0))
    return [Begun(usage=Usage(input_uncached=5, input_cached=7)), *merged, Done(usage=USAGE)]
