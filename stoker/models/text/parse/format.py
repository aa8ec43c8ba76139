"""The output formats as data: which marks a family writes and what each mark and the text between them mean in each
state. Owns no behaviour: lexer.py finds the marks, engine.py walks the table, the families' modules read calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stoker.models.text.parse.table import Act, Mark, Row, Sink, State, Step, Table

Piece = tuple[str, bool]
"""A piece of output: its text, and whether it is one control token rather than ordinary text."""


class StartState(StrEnum):
    """What the prompt's tail left open: inside of `<think>`, in the answer, or nothing (the model decides)."""

    REASONING = "reasoning"
    CONTENT = "content"
    NONE = "none"


@dataclass(frozen=True)
class Format:
    """A family's way to write.

    marks     marker text -> meaning
    table     what everything means where tools are declared
    plain     the same where they are not: no calls then
    ending    rows that replace those of `table` when text held in State.DOUBT is read again at the end of the output
    hidden    marks that are never text: where they mean nothing they are dropped
    spelled   markers that the family's vocabulary has no token for: found in text even where tokens are known
    layout    white space beside tags belongs to the layout, not to the text
    verbatim  but not in reasoning: some members of the family are given it back as it was written
    reader    which module reads the calls
    """

    name: str
    marks: Mapping[str, Mark]
    table: Table
    plain: Table
    ending: Table = field(default_factory=dict[State, Row])
    hidden: frozenset[Mark] = frozenset({Mark.STOP})
    spelled: frozenset[str] = frozenset()
    layout: bool = False
    verbatim: bool = False
    reader: str = "none"


def _text_rows(on: Mapping[Mark, Step], *, drop: tuple[Mark, ...] = ()) -> dict[State, Row]:
    """Reasoning and content. `on` holds in both, a mark in `drop` is dropped in both."""
    close = {Mark.THINK_END: Step(State.OPEN)}

    def row(sink: Sink, state: State, own: Mapping[Mark, Step], then: State | None = None) -> Row:
        return Row(sink, {**{mark: Step(state) for mark in drop}, **on, **own}, then)

    return {
        State.THINK_START: row(
            Sink.REASONING, State.THINK_START, {Mark.THINK: Step(State.THINK_START), **close}, State.THINK
        ),
        State.THINK: row(Sink.REASONING, State.THINK, close),
        State.OPEN: row(
            Sink.OPENING,
            State.OPEN,
            {Mark.THINK: Step(State.THINK_START), Mark.THINK_END: Step(State.OPEN)},
            State.CONTENT,
        ),
        State.CONTENT: row(Sink.CONTENT, State.CONTENT, {Mark.THINK_END: Step(State.CONTENT)}),
    }


_THINK_MARKS = {"<think>": Mark.THINK, "</think>": Mark.THINK_END}
_TO_NAME = Step(State.NAME, (Act.BEGIN,))


def _kimi(name: str) -> Format:
    """`<|tool_calls_section_begin|>` of calls `<|tool_call_begin|>` id `<|tool_call_argument_begin|>` JSON."""
    to_section = Step(State.SECTION)
    markers = (Mark.SECTION, Mark.SECTION_END, Mark.CALL, Mark.CALL_END, Mark.ARGUMENTS)
    calls = {
        State.SECTION: Row(Sink.NOBODY, {Mark.CALL: _TO_NAME, Mark.SECTION_END: Step(State.CONTENT)}),
        State.NAME: Row(
            Sink.CALL,
            {
                Mark.ARGUMENTS: Step(State.ARGUMENTS, (Act.START,)),
                Mark.CALL: _TO_NAME,
                Mark.CALL_END: Step(State.HOME, (Act.START, Act.CLOSE)),
                Mark.SECTION_END: Step(State.CONTENT, (Act.START, Act.CLOSE)),
                Mark.SECTION: to_section,
            },
        ),
        State.ARGUMENTS: Row(
            Sink.CALL,
            {
                Mark.CALL_END: Step(State.HOME, (Act.CLOSE,)),
                Mark.SECTION_END: Step(State.CONTENT, (Act.CUT,)),
                Mark.CALL: Step(State.NAME, (Act.CUT, Act.BEGIN)),
                Mark.SECTION: Step(State.SECTION, (Act.CUT,)),
            },
            argument=True,
        ),
    }
    stray = (Mark.SECTION_END, Mark.CALL_END, Mark.ARGUMENTS)
    return Format(
        name=name,
        marks={
            **_THINK_MARKS,
            "<|tool_calls_section_begin|>": Mark.SECTION,
            "<|tool_call_section_begin|>": Mark.SECTION,
            "<|tool_calls_section_end|>": Mark.SECTION_END,
            "<|tool_call_section_end|>": Mark.SECTION_END,
            "<|tool_call_begin|>": Mark.CALL,
            "<|tool_call_argument_begin|>": Mark.ARGUMENTS,
            "<|tool_call_end|>": Mark.CALL_END,
            "<|im_end|>": Mark.STOP,
            "[EOS]": Mark.STOP,
        },
        table={**_text_rows({Mark.SECTION: to_section, Mark.CALL: _TO_NAME}, drop=stray), **calls},
        plain=_text_rows({}, drop=markers),
        hidden=frozenset({Mark.STOP, *markers}),
        spelled=frozenset({"<|tool_call_section_begin|>", "<|tool_call_section_end|>"}),
        reader="kimi",
    )


def _glm(name: str, *, verbatim: bool) -> Format:
    """`<tool_call>` name (`<arg_key>` key `</arg_key>` `<arg_value>` value `</arg_value>`)* `</tool_call>`, on one
    line or on several."""
    close = Step(State.CONTENT, (Act.CLOSE,))
    new_key = Step(State.KEY, (Act.NEW_KEY,))
    open_value = Step(State.VALUE, (Act.OPEN_VALUE,))
    between = Step(State.BETWEEN, (Act.END_VALUE,))
    broken = Step(State.NAME, (Act.CUT, Act.BEGIN))
    value = {Mark.VALUE_END: between}
    calls = {
        State.NAME: Row(
            Sink.CALL,
            {
                Mark.KEY: Step(State.KEY, (Act.START, Act.NEW_KEY)),
                Mark.CALL_END: Step(State.CONTENT, (Act.START, Act.CLOSE)),
                Mark.CALL: _TO_NAME,
            },
        ),
        State.KEY: Row(
            Sink.CALL,
            {
                Mark.KEY_END: Step(State.KEY_DONE),
                Mark.VALUE: open_value,
                Mark.KEY: new_key,
                Mark.CALL: broken,
                Mark.CALL_END: close,
            },
        ),
        State.KEY_DONE: Row(
            Sink.CALL,
            {
                Mark.VALUE: open_value,
                Mark.VALUE_END: Step(State.BETWEEN, (Act.OPEN_VALUE, Act.END_VALUE)),
                Mark.KEY: new_key,
                Mark.CALL: broken,
                Mark.CALL_END: close,
            },
        ),
        State.VALUE: Row(Sink.CALL, {**value, Mark.CALL_END: Step(State.DOUBT)}, argument=True),
        State.DOUBT: Row(Sink.CALL, value, argument=True),
        State.BETWEEN: Row(
            Sink.NOBODY,
            {Mark.KEY: new_key, Mark.CALL_END: close, Mark.CALL: Step(State.NAME, (Act.CLOSE, Act.BEGIN))},
        ),
    }
    ending = {
        State.VALUE: Row(
            Sink.CALL,
            {**value, Mark.CALL_END: Step(State.CONTENT, (Act.END_VALUE, Act.CLOSE))},
            argument=True,
        )
    }
    return Format(
        name=name,
        marks={
            **_THINK_MARKS,
            "<tool_call>": Mark.CALL,
            "</tool_call>": Mark.CALL_END,
            "<arg_key>": Mark.KEY,
            "</arg_key>": Mark.KEY_END,
            "<arg_value>": Mark.VALUE,
            "</arg_value>": Mark.VALUE_END,
            "<|user|>": Mark.STOP,
            "<|observation|>": Mark.STOP,
            "<|endoftext|>": Mark.STOP,
        },
        table={**_text_rows({Mark.CALL: _TO_NAME}), **calls},
        plain=_text_rows({}),
        ending=ending,
        layout=True,
        verbatim=verbatim,
        reader="glm",
    )


def _hermes() -> Format:
    """`<tool_call>` {"name": ..., "arguments": {...}} `</tool_call>`. What follows JSON strings decides where a block
    ends, so marks are looked for in text only where JSON has ended or broken."""
    begin = Step(State.JSON, (Act.BEGIN,))
    again = Step(State.JSON, (Act.CUT, Act.BEGIN))
    close = Step(State.CONTENT, (Act.CLOSE,))
    out = Step(State.CONTENT)
    calls = {
        State.JSON: Row(Sink.CALL, {Mark.CALL: again, Mark.CALL_END: close}, argument=True, listen=False),
        State.BREAK: Row(Sink.CALL, {Mark.CALL: again, Mark.CALL_END: close}, argument=True),
        State.TAIL: Row(Sink.CALL, {Mark.CALL: begin, Mark.CALL_END: out}),
        State.REST: Row(Sink.CONTENT, {Mark.CALL: begin, Mark.CALL_END: out}),
    }
    return Format(
        name="hermes",
        marks={
            **_THINK_MARKS,
            "<tool_call>": Mark.CALL,
            "</tool_call>": Mark.CALL_END,
            "<|im_end|>": Mark.STOP,
            "<|endoftext|>": Mark.STOP,
        },
        table={**_text_rows({Mark.CALL: begin}), **calls},
        plain=_text_rows({}),
        layout=True,
        reader="hermes",
    )


def _no_calls(name: str, marks: Mapping[str, Mark], *, layout: bool) -> Format:
    rows = _text_rows({})
    return Format(name=name, marks=marks, table=rows, plain=rows, layout=layout)


FORMATS: dict[str, Format] = {
    **{name: _kimi(name) for name in ("kimi_k2", "kimi_k25")},
    "glm45": _glm("glm45", verbatim=False),
    "glm47": _glm("glm47", verbatim=True),
    "hermes": _hermes(),
    "think": _no_calls("think", _THINK_MARKS, layout=True),
    "none": _no_calls("none", {}, layout=False),
}

_FAMILIES = {"kimi_k2_thinking": "kimi_k25", "kimi_k26_preserve": "kimi_k25", "plain": "none"}


def format_of(family: str) -> Format:
    """The format of a model family: a name in FORMATS, or one of a family that writes like it. KeyError if unknown."""
    name = _FAMILIES.get(family, family)
    return FORMATS["glm47" if name.startswith(("glm5", "glm47")) else name]
