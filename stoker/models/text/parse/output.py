"""The events of one choice: joins what one push produced, keeps white space beside tags out of the text, counts calls.
Owns what has been sent; nothing sent is taken back."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from stoker.types.chat import Delta, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallDone, ToolCallStart


class Flow:
    """Text of one kind. With `layout`, white space waits until what comes next shows what it is: dropped beside a tag,
    text otherwise."""

    def __init__(self, send: Callable[[str], None], *, layout: bool) -> None:
        self._send = send
        self._layout = layout
        self._waiting: list[str] = []
        self._lead = False  # a tag came last: white space after it is no text
        self._loose = False  # a call came last: what waits is no text unless text follows
        self._written = False

    def write(self, text: str, *, hold: bool = False) -> None:
        """`hold`: white space alone waits even where there is no layout."""
        if self._lead:
            text = text.lstrip()
        if not text:
            return
        if text.isspace() and (hold or self._layout):
            self._waiting.append(text)
            return
        body = text.rstrip() if self._layout else text
        self._send("".join(self._waiting) + body)
        self._waiting = [text[len(body) :]]
        self._lead = self._loose = False
        self._written = True

    def tag(self) -> None:
        """A tag that opens or closes reasoning comes here."""
        if self._layout:
            self._waiting.clear()
            self._lead = True

    def call(self) -> None:
        """A call comes here."""
        if not self._layout:
            self.end()
        elif not self._written:
            self.tag()
        self._loose = True

    def end(self) -> None:
        """Nothing follows."""
        if not self._layout or (self._written and not self._loose):
            self._send("".join(self._waiting))
        self._waiting.clear()


class Output:
    """Events of choice `index`. One call at most is open at any time."""

    def __init__(self, index: int, *, layout: bool, verbatim: bool = False) -> None:
        self.calls = 0
        self.complete = 0
        self.reasoning = Flow(self._reason, layout=layout and not verbatim)
        self.content = Flow(self._say, layout=layout)
        self._index = index
        self._events: list[Delta] = []
        self._parts: list[str] = []
        self._kind: type[ReasoningDelta] | type[TextDelta] | type[ToolCallDelta] | None = None
        self._ids = f"call_{secrets.token_hex(10)}"

    def take(self) -> list[Delta]:
        """What came since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def start(self, name: str, id: str | None = None) -> None:
        """Begin a call. Without an id it gets one that no other call has; ids of one output sort in its order."""
        self._flush()
        self._events.append(
            ToolCallStart(index=self._index, call=self.calls, id=id or f"{self._ids}{self.calls:04d}", name=name)
        )

    def arguments(self, text: str) -> None:
        self._add(ToolCallDelta, text)

    def done(self, *, complete: bool, valid: bool) -> None:
        """End the open call."""
        self._flush()
        self._events.append(ToolCallDone(index=self._index, call=self.calls, complete=complete, valid=valid))
        self.calls += 1
        self.complete += complete

    def _reason(self, text: str) -> None:
        self._add(ReasoningDelta, text)

    def _say(self, text: str) -> None:
        self._add(TextDelta, text)

    def _add(self, kind: type[ReasoningDelta] | type[TextDelta] | type[ToolCallDelta], text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        self._parts.clear()
        if self._kind is ToolCallDelta:
            self._events.append(ToolCallDelta(index=self._index, call=self.calls, arguments=text))
        elif self._kind is ReasoningDelta:
            self._events.append(ReasoningDelta(index=self._index, text=text))
        else:
            self._events.append(TextDelta(index=self._index, text=text))
        self._kind = None
