"""A format's table at work: tokens in, states out. The one automaton of OutputParser and ReasoningGate; owns the state,
not what is done with the text."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import lru_cache
from typing import NamedTuple

from stoker.models.text.parse.format import FORMATS, Format, Piece, StartState
from stoker.models.text.parse.lexer import Lexer, Scanner
from stoker.models.text.parse.table import Act, Mark, Row, Sink, State, Table

_STARTS = {
    StartState.REASONING: State.THINK_START,
    StartState.CONTENT: State.OPEN,
    StartState.NONE: State.OPEN,
}


class Read(NamedTuple):
    """One step: text for `sink`, or (sink None) a mark and what it makes the reader of calls do.

    before  the state that the text or mark came in
    """

    sink: Sink | None
    text: str
    control: bool
    before: State
    mark: Mark | None = None
    acts: tuple[Act, ...] = ()


class Snapshot(NamedTuple):
    """Where a machine is, and the beginning of a possible mark that it holds."""

    state: State
    waiting: tuple[Piece, ...]


class Plan:
    """A format's rows for one kind of request, with the scanner of each. Shared between requests."""

    def __init__(self, format: Format, rows: Table, spelled: frozenset[str] | None) -> None:
        """`spelled`: the markers to look for in text; None means all."""
        self.rows: Table = rows
        self.marks = format.marks
        self.hidden = format.hidden
        self.scanners = {state: self._scanner(row, spelled) for state, row in rows.items()}

    def _scanner(self, row: Row, spelled: frozenset[str] | None) -> Scanner:
        found = {
            text: mark
            for text, mark in self.marks.items()
            if (spelled is None or text in spelled) and (mark is Mark.STOP or (row.listen and mark in row.on))
        }
        stops = frozenset(text for text, mark in found.items() if mark is Mark.STOP)
        return Scanner(found, stops if row.argument else frozenset())


@lru_cache(maxsize=256)
def plans(name: str, calls: bool, spelled: frozenset[str] | None) -> tuple[Plan, Plan]:
    """What holds while output comes, and what holds for held text read again at its end."""
    format = FORMATS[name]
    rows = format.table if calls else format.plain
    plan = Plan(format, rows, spelled)
    return plan, Plan(format, {**rows, **format.ending}, spelled) if calls and format.ending else plan


class Machine:
    """One output on its way through the table."""

    def __init__(self, format: Format, start: StartState, *, calls: bool, spelled: frozenset[str] | None) -> None:
        self.state = _STARTS[start] if format.marks else State.CONTENT
        self.quoted = False  # control tokens are data now
        self._home = State.CONTENT
        self._plan, self._ending = plans(format.name, calls, spelled)
        self._lexer = Lexer(format.marks)

    def feed(self, pieces: Iterable[Piece]) -> None:
        self._lexer.feed(pieces)

    def plain(self, text: str) -> Sink | None:
        """Whose text this is, as nearly all is, where feeding it would change nothing: nothing before it waits, no mark
        can begin in it and no state ends with it. None if it must be fed."""
        row = self._plan.rows[self.state]
        if row.then is None and self._lexer.empty and self._plan.scanners[self.state].plain(text):
            return row.text
        return None

    def next(self, *, final: bool = False) -> Read | None:
        """The next step, already taken; None if more output is needed to tell. `final`: no more will come."""
        plan = self._plan
        while True:
            before = self.state
            token = self._lexer.next(plan.scanners[before], final=final)
            if token is None:
                return None
            text, mark, control = token
            row = plan.rows[before]
            if mark is not None:
                step = None if self.quoted and control else row.on.get(mark)
                if step is not None:
                    if row.text is not Sink.CALL:
                        self._home = before if before is State.SECTION else State.CONTENT
                    self.state = self._home if step.to is State.HOME else step.to
                    return Read(None, text, control, before, mark, step.acts)
            if control and (mark is None or mark in plan.hidden):
                continue
            if mark is Mark.STOP:
                continue
            if row.then is not None and not text.isspace():
                self.state = row.then
            return Read(row.text, text, control, before)

    def unread(self, read: Read, count: int) -> None:
        """Take back the last `count` characters of the text just read: they belong to the state set after it."""
        self._lexer.unread(read.text, read.control, count)

    def reread(self, pieces: Iterable[Piece], state: State) -> None:
        """At the end of the output: read `pieces` as what follows in `state`, by the rows for the ending."""
        self._plan = self._ending
        self.state = state
        self._lexer.feed(pieces)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.state, self._lexer.waiting())

    def restore(self, snapshot: Snapshot) -> None:
        """Back to a snapshot that was taken outside of any call."""
        self.state = snapshot.state
        self._lexer.clear()
        self._lexer.feed(snapshot.waiting)

    def copy(self) -> Machine:
        """Another machine in the same place, outside of any call."""
        other = copy(self)
        other._lexer = self._lexer.fresh()
        other.restore(self.snapshot())
        return other
