"""One choice's output, piece by piece, to events. The same code serves streams and whole answers: the result does not
depend on how the output is cut. Owns the walk through a format's table; the readers own the calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from stoker.models.text.parse.format import Format, Piece, StartState
from stoker.models.text.parse.glm import GlmCalls
from stoker.models.text.parse.hermes import HermesCalls
from stoker.models.text.parse.kimi import KimiCalls
from stoker.models.text.parse.machine import Machine, Read
from stoker.models.text.parse.output import Output
from stoker.models.text.parse.table import Act, Mark, Sink, State
from stoker.types.chat import Delta, FinishReason, Tool

_THINKING = (State.THINK_START, State.THINK)


class CallReader(Protocol):
    """Reads the calls of one output into its Output."""

    @property
    def quoted(self) -> bool:
        """Control tokens are data here."""
        ...

    def act(self, act: Act, mark: str) -> None:
        """A mark came."""
        ...

    def text(self, state: State, text: str) -> tuple[int, State]:
        """Text came in `state`: how much of it is used, and the state that the rest is read in."""
        ...

    def finish(self, state: State, *, stopped: bool) -> None:
        """The output ended in `state`, by itself or (not `stopped`) cut off."""
        ...


def _reader(format: Format, out: Output, tools: Sequence[Tool], history: int) -> CallReader:
    if format.reader == "kimi":
        return KimiCalls(out, tools, history)
    return GlmCalls(out, tools) if format.reader == "glm" else HermesCalls(out)


class OutputParser:
    """One choice. Push pieces as they come, then finish once."""

    def __init__(
        self,
        format: Format,
        *,
        index: int = 0,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        start: StartState = StartState.NONE,
        history_tool_calls: int = 0,
        control_known: bool = False,
        spelled: Collection[str] = (),
    ) -> None:
        """`control_known`: pieces say which text is a control token, so markers in ordinary text are text, except
        those in `spelled`: markers that this vocabulary has no token for. `history_tool_calls`: how many calls the
        conversation holds already."""
        known = format.spelled | frozenset(spelled) if control_known else None
        self._machine = Machine(format, start, calls=bool(tools) and tool_choice != "none", spelled=known)
        self._out = Output(index, layout=format.layout, verbatim=format.verbatim)
        self._calls = _reader(format, self._out, tools, history_tool_calls)
        self._doubt: list[Piece] = []

    @property
    def reasoning(self) -> bool:
        """Inside of reasoning: what comes next is reasoning or ends it."""
        return self._machine.state in _THINKING

    def push(self, pieces: Sequence[Piece]) -> list[Delta]:
        """More output. What is certain by now comes back; the beginning of a possible marker waits."""
        if len(pieces) != 1 or pieces[0][1] or not self._plain(pieces[0][0]):
            self._machine.feed(pieces)
            self._run(final=False)
        return self._out.take()

    def finish(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        """The output is over: by itself ("stop"), or cut off for another reason. What was still waiting, and what the
        client is told of the reason."""
        machine, out = self._machine, self._out
        self._run(final=True)
        if machine.state is State.DOUBT and reason == "stop":
            machine.reread(self._doubt, State.VALUE)
            self._run(final=True)
        out.reasoning.end()
        out.content.end()
        self._calls.finish(machine.state, stopped=reason == "stop")
        if reason == "stop" and out.complete:
            return out.take(), "tool_calls"
        return out.take(), reason

    def _plain(self, text: str) -> bool:
        """Take text in which there is nothing to find; False if a closer look is needed."""
        machine, before = self._machine, self._machine.state
        match machine.plain(text):
            case Sink.CONTENT:
                self._out.content.write(text)
            case Sink.REASONING:
                self._out.reasoning.write(text)
            case Sink.CALL if before is not State.DOUBT:
                used, machine.state = self._calls.text(before, text)
                machine.quoted = self._calls.quoted
                if used < len(text):
                    machine.feed([(text[used:], False)])
                    self._run(final=False)
            case _:
                return False
        return True

    def _run(self, *, final: bool) -> None:
        machine, out = self._machine, self._out
        while (read := machine.next(final=final)) is not None:
            match read.sink:
                case Sink.REASONING:
                    out.reasoning.write(read.text)
                case Sink.OPENING:
                    out.content.write(read.text, hold=True)
                case Sink.CONTENT:
                    out.content.write(read.text)
                case Sink.CALL:
                    self._call_text(read)
                case None:
                    self._mark(read)
                case Sink.NOBODY:
                    pass

    def _mark(self, read: Read) -> None:
        out, state = self._out, self._machine.state
        if read.before in _THINKING and state not in _THINKING:
            out.reasoning.tag()
        if read.mark in (Mark.THINK, Mark.THINK_END) and read.before is not State.CONTENT:
            out.reasoning.tag()
            out.content.tag()
        if read.mark in (Mark.SECTION, Mark.CALL):
            out.content.call()
        if state is State.DOUBT:
            self._doubt = [(read.text, read.control)]
        elif read.before is State.DOUBT:
            self._calls.text(State.VALUE, "".join(text for text, _ in self._doubt))
        for act in read.acts:
            self._calls.act(act, read.text)
        self._machine.quoted = self._calls.quoted

    def _call_text(self, read: Read) -> None:
        if read.before is State.DOUBT:
            self._doubt.append((read.text, read.control))
            return
        used, state = self._calls.text(read.before, read.text)
        self._machine.quoted = self._calls.quoted
        if state is not read.before:
            self._machine.state = state
            self._machine.unread(read, len(read.text) - used)
