"""The words that a description of a format is made of: what a mark can mean, where in the output one can be, and what a
row of its table says. Owns no format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple


class Mark(Enum):
    """What a marker means, however a family spells it."""

    THINK = auto()
    THINK_END = auto()
    SECTION = auto()
    SECTION_END = auto()
    CALL = auto()
    CALL_END = auto()
    ARGUMENTS = auto()
    KEY = auto()
    KEY_END = auto()
    VALUE = auto()
    VALUE_END = auto()
    STOP = auto()


class State(Enum):
    """Where in the output we are."""

    THINK_START = auto()  # reasoning, only white space so far
    THINK = auto()
    OPEN = auto()  # content, only white space so far: the model may still begin to think
    CONTENT = auto()
    SECTION = auto()  # Kimi: among the calls of a section
    NAME = auto()  # Kimi, GLM: the text that names a call
    ARGUMENTS = auto()  # Kimi
    KEY = auto()  # GLM
    KEY_DONE = auto()  # GLM: a value is due
    VALUE = auto()  # GLM
    DOUBT = auto()  # GLM: a call's end inside of a value; data if the value's end still comes
    BETWEEN = auto()  # GLM: after a value
    JSON = auto()  # hermes: in a block, as long as what came is JSON
    BREAK = auto()  # hermes: what comes next is not the JSON of a call
    TAIL = auto()  # hermes: after a call, still in its block
    REST = auto()  # hermes: text after a call, still in its block
    HOME = auto()  # in a step only: back to the section, or to content where there was none


class Act(Enum):
    """What a mark makes a family's reader of calls do."""

    BEGIN = auto()  # a call's name follows
    START = auto()  # the name is complete
    CLOSE = auto()  # the call ends by its own end mark
    CUT = auto()  # something else begins or ends while the call is open
    NEW_KEY = auto()
    OPEN_VALUE = auto()
    END_VALUE = auto()


class Sink(Enum):
    """Whose the text of a state is."""

    REASONING = auto()
    OPENING = auto()  # content, once anything but white space comes
    CONTENT = auto()
    CALL = auto()
    NOBODY = auto()


class Step(NamedTuple):
    """What a mark does: the state after it, and what the reader of calls does on the way."""

    to: State
    acts: tuple[Act, ...] = ()


@dataclass(frozen=True)
class Row:
    """One state. `text` says whose its text is, `on` what marks do; a mark that is not in `on` means nothing here, but
    a stop token is dropped everywhere.

    then       state after text that is not only white space, if another
    argument   text is data that a client may choose freely: a stop token's text in it is data unless it comes last
    listen     marks are looked for in ordinary text; else only control tokens can be marks
    """

    text: Sink
    on: Mapping[Mark, Step] = field(default_factory=dict[Mark, Step])
    then: State | None = None
    argument: bool = False
    listen: bool = True


Table = Mapping[State, Row]
