"""Whether reasoning is over, piece by piece: the parser's own automaton, for whoever must know it while tokens are
still being made (a grammar that begins after reasoning, a budget of reasoning). Owns nothing else."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy

from stoker.models.text.parse.format import Format, Piece, StartState
from stoker.models.text.parse.machine import Machine, Snapshot
from stoker.models.text.parse.table import State

_THINKING = (State.THINK_START, State.THINK)


class ReasoningGate:
    """One output. Arguments as OutputParser's; `calls`: tools are declared, so a call ends reasoning too.

    Where the prompt leaves it to the model (StartState.NONE), reasoning is not over until it ended or other text than
    white space came: what may come first is `<think>` or the answer itself. Once over, it stays over.
    """

    def __init__(
        self,
        format: Format,
        start: StartState,
        *,
        calls: bool,
        control_known: bool = False,
        spelled: Collection[str] = (),
    ) -> None:
        known = format.spelled | frozenset(spelled) if control_known else None
        self._machine = Machine(format, start, calls=calls, spelled=known)
        self.over = start is StartState.CONTENT or not format.marks
        self.rest = ""
        """Once over: the text of the last piece that belongs to what follows reasoning, a call's mark included."""

    @property
    def thinking(self) -> bool:
        """Inside of reasoning. Neither this nor `over`: the model has not begun."""
        return not self.over and self._machine.state in _THINKING

    def feed(self, piece: Piece) -> bool:
        """One more piece; whether reasoning is over after it."""
        if self.over:
            return True
        machine = self._machine
        machine.feed([piece])
        began = machine.state in _THINKING
        while not self.over and (read := machine.next()) is not None:
            began = began or machine.state in _THINKING
            if machine.state in _THINKING or (machine.state is State.OPEN and not began):
                continue
            self.over = True
            self.rest = ("" if read.before in _THINKING and machine.state is State.OPEN else read.text) + "".join(
                text for text, _ in machine.snapshot().waiting
            )
        return self.over

    def snapshot(self) -> tuple[bool, str, Snapshot]:
        """All there is to it, immutable and small: what `restore` takes back to."""
        return self.over, self.rest, self._machine.snapshot()

    def restore(self, snapshot: tuple[bool, str, Snapshot]) -> None:
        """As if nothing had been fed since `snapshot`."""
        self.over, self.rest, machine = snapshot
        self._machine.restore(machine)

    def copy(self) -> ReasoningGate:
        """Another gate in the same place."""
        other = copy(self)
        other._machine = self._machine.copy()
        return other
