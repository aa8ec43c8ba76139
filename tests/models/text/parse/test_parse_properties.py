"""Outputs that no model should write: whatever comes, in whatever pieces, the events make sense and are the same."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parse_cases import Result, is_object

from stoker.models.text.parse.engine import OutputParser
from stoker.models.text.parse.format import FORMATS, Piece, StartState
from stoker.types.chat import Delta, Tool

TOOLS = (
    Tool(
        name="get",
        parameters={
            "type": "object",
            "properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "u": {"type": ["string", "null"]}},
            "required": ["s"],
        },
    ),
    Tool(name="now", parameters={"type": "object", "properties": {}}),
    Tool(name="free"),
)
JSON_BITS = [
    '{"name": "get", "arguments": {"s": "a"}}',
    '{"arguments": {}, "name": "now"}',
    '[{"name": "now"}, {"name": "get", "parameters": "{\\"s\\": 1}"}]',
    '{"name": "now", "arguments": ',
    '"name"',
    '"arguments": {',
    *'{}[],:"\\',
    "\\u12",
    "null",
    "-1.5e3",
    '{"s": "x"}',
    '{"k": [1, {"q": "<"}]}',
]
JUNK = [
    "get",
    "now",
    "functions.get:0",
    "functions_now_1",
    "7",
    "s",
    "i",
    "u",
    " ",
    "\n",
    "\t ",
    "a b",
    "é",
    "😀",
    "<",
    "</",
    "|>",
]


# Whole calls in small parts, which the tests tear apart.
SENTENCES = {
    "kimi": [
        ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.", "get", ":", "0"],
        ["<|tool_call_argument_begin|>", " ", "{", '"s"', ":", '"a', "</think>", 'b"', "}", "\n", "<|tool_call_end|>"],
        ["<|tool_call_begin|>", "4", "<|tool_call_argument_begin|>", '{"s":"x"}', "<|tool_call_end|>"],
        ["<|tool_calls_section_end|>", "text", "<|im_end|>"],
    ],
    "glm": [
        ["<tool_call>", "get", "\n", "<arg_key>", "s", "</arg_key>", "\n", "<arg_value>", " a</b>", "</arg_value>"],
        ["<arg_key>", "u", "</arg_key>", "<arg_value>", "null", "</arg_value>", "</tool_call>", "\n"],
        [
            "<tool_call>",
            "free",
            "<arg_key>",
            "k",
            "</arg_key>",
            "<arg_value>",
            "{'a': 1}",
            "</arg_value>",
            "</tool_call>",
        ],
        ["<tool_call>", "now", "</tool_call>", " text ", "<|user|>"],
    ],
    "hermes": [
        [
            "<tool_call>",
            "\n",
            "{",
            '"name"',
            ": ",
            '"get"',
            ", ",
            '"arguments"',
            ": ",
            "{",
            '"s"',
            ":",
            '"</tool_call>"',
            "}",
        ],
        ["}", "\n", "</tool_call>", "\n"],
        ["<tool_call>", "[", '{"name": "now"}', ", ", '{"parameters": "{}", "name": "get"}', "]", "</tool_call>"],
        [
            "<tool_call>",
            '{"arguments": {"s": 1}, "name": "x"}',
            ",",
            '{"name": "now", "arguments": null}',
            "</tool_call>",
        ],
        ["text", "<|im_end|>"],
    ],
    "none": [["<tool_call>", "text"]],
}


@st.composite
def torn(draw: st.DrawFn, name: str) -> list[str]:
    """Reasoning perhaps, then whole calls with some parts missing, doubled or replaced."""
    sentences = SENTENCES[FORMATS[name].reader]
    chosen = draw(st.lists(st.sampled_from(sentences), min_size=1, max_size=3) | st.just(sentences))
    parts = [part for sentence in [["<think>", "why", "</think>", "\n"], *chosen] for part in sentence]
    for at in sorted(draw(st.sets(st.integers(0, len(parts) - 1), max_size=4)), reverse=True):
        parts[at : at + 1] = draw(st.sampled_from([[], [], [parts[at]] * 2, [" "], ["x", parts[at]], [parts[at][:-1]]]))
    return parts


def marks_of(name: str) -> list[str]:
    return sorted({*FORMATS[name].marks, "<tool_call>", "<think>", "</think>"})


@st.composite
def outputs(draw: st.DrawFn) -> tuple[str, list[Piece]]:
    """A format and pieces of output, some of them control tokens."""
    name = draw(st.sampled_from(sorted(FORMATS)))
    marks = marks_of(name)
    beginnings = [mark[:size] for mark in marks for size in range(1, len(mark))]
    plain = st.sampled_from([*JSON_BITS, *JUNK, *beginnings, *marks]).map(lambda text: (text, False))
    control = st.sampled_from([*marks, "<|unknown|>"]).map(lambda text: (text, True))
    if draw(st.booleans()):
        known = draw(st.sampled_from([frozenset(), frozenset(marks)]))
        return name, [(text, text in known) for text in draw(torn(name))]
    return name, draw(st.lists(st.one_of(plain, plain, control), max_size=24))


@st.composite
def options(draw: st.DrawFn) -> Callable[[str], OutputParser]:
    known = draw(st.booleans())
    tools = draw(st.sampled_from([TOOLS, TOOLS, TOOLS, ()]))
    choice = draw(st.sampled_from(["auto", "auto", "required", "none"]))
    start = draw(st.sampled_from(StartState))
    history = draw(st.integers(0, 3))

    def make(name: str) -> OutputParser:
        return OutputParser(
            FORMATS[name],
            index=3,
            tools=tools,
            tool_choice=choice,
            start=start,
            history_tool_calls=history,
            control_known=known,
            spelled=("<tool_call>",),
        )

    return make


def cut(pieces: list[Piece], draw: st.DataObject) -> list[list[Piece]]:
    """Other pushes of the same output: ordinary text joined and cut anywhere, control tokens whole."""
    runs: list[Piece] = []
    for text, control in pieces:
        if runs and not control and not runs[-1][1]:
            runs[-1] = (runs[-1][0] + text, False)
        else:
            runs.append((text, control))
    pushes: list[list[Piece]] = [[]]
    for text, control in runs:
        ends = [] if control else sorted(draw.draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=6)))
        for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
            if draw.draw(st.booleans()):
                pushes.append([])
            if text[start:end]:
                pushes[-1].append((text[start:end], control))
    return pushes


def parse(parser: OutputParser, pushes: list[list[Piece]], end: str) -> Result:
    events: list[Delta] = []
    for pieces in pushes:
        events += parser.push(pieces)
    last, reason = parser.finish(end)
    return Result.of([*events, *last], reason)


@settings(max_examples=600, deadline=None)
@given(outputs(), options(), st.sampled_from(["stop", "length", "abort"]), st.data())
def test_the_result_does_not_depend_on_the_cut(output, make, end, data) -> None:
    name, pieces = output
    whole = parse(make(name), [pieces], end)
    assert parse(make(name), cut(pieces, data), end).plain == whole.plain
    letters = [[(letter, False)] for text, control in pieces if not control for letter in text]
    if not any(control for _, control in pieces):
        assert parse(make(name), letters, end).plain == whole.plain


@settings(max_examples=400, deadline=None)
@given(outputs(), options(), st.sampled_from(["stop", "length"]))
def test_what_a_result_promises(output, make, end) -> None:
    """Beyond what Result checks: no control token's text reaches a Kimi client, GLM's arguments are always JSON, and a
    call that is not complete is no reason to say tool_calls."""
    name, pieces = output
    format = FORMATS[name]
    result = parse(make(name), [pieces], end)
    assert result.finish_reason == ("length" if end == "length" else result.finish_reason)
    assert (result.finish_reason == "tool_calls") == (end == "stop" and any(call.complete for call in result.calls))
    if format.reader == "glm":
        assert all(is_object(call.arguments) for call in result.calls if call.complete)
    if format.reader in ("none", "kimi"):
        ordinary = "".join(text for text, control in pieces if not control)
        for mark, meaning in format.marks.items():
            said = result.content + result.reasoning
            assert meaning not in format.hidden or said.count(mark) <= ordinary.count(mark)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*JSON_BITS, *JUNK, "<tool_call>", "</arg_value", "<|im_end|>x"]), max_size=12).map(
        "".join
    )
)
def test_a_string_value_is_exact(text: str) -> None:
    """Any text that does not close the value comes back byte for byte, in each family."""
    glm = f"<tool_call>get<arg_key>s</arg_key><arg_value>{text}</arg_value></tool_call>"
    [call] = parse(make_with_tools("glm47"), [[(letter, False)] for letter in glm], "stop").calls
    assert json.loads(call.arguments) == {"s": text}
    arguments = json.dumps({"s": text})
    kimi = f"<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    [call] = parse(make_with_tools("kimi_k2"), [[(letter, False)] for letter in kimi], "stop").calls
    assert call.arguments == arguments
    hermes = f'<tool_call>{{"name": "get", "arguments": {arguments}}}</tool_call>'
    [call] = parse(make_with_tools("hermes"), [[(letter, False)] for letter in hermes], "stop").calls
    assert call.arguments == arguments


def make_with_tools(name: str, start: StartState = StartState.CONTENT) -> OutputParser:
    return OutputParser(FORMATS[name], index=3, tools=TOOLS, start=start)


HOSTILE = {
    "angles": "<",
    "beginnings": "<|tool_call",
    "tags": "</arg_value",
    "ends": "</tool_call>",
    "opens": "<tool_call>",
    "thoughts": "<think></think>",
    "stops": "<|im_end|><|user|>",
    "spaces": " \n",
    "brackets": "[",
    "objects": '{"a":',
    "quotes": '"\\',
    "blocks": '<tool_call>{"name": "now"}',
    "elements": '{"name":"now"}',
    "lists": '<tool_call>[{"name": "now"},',
    "members": "<arg_key>s</arg_key><arg_value>x</tool_call><tool_call>get",
    "unions": "<arg_key>u</arg_key><arg_value>'a'</arg_value>",
    "sections": "<|tool_calls_section_begin|><|tool_call_begin|>1<|tool_call_argument_begin|>{}",
    "headers": "<|tool_call_begin|>functions.now:0<|tool_call_end|>",
}
BEGIN = {
    "glm": "<tool_call>get<arg_key>s</arg_key><arg_value>",
    "hermes": '<tool_call>{"name": "now", "arguments": {"s": "',
}


@pytest.mark.parametrize("name", ["kimi_k25", "glm47", "hermes"])
@pytest.mark.parametrize("what", HOSTILE)
def test_time_is_linear(name: str, what: str) -> None:
    """Four times the output takes about four times as long, in one push and letter by letter."""
    begins = [
        "<tool_call>" if what == "elements" else "",
        BEGIN.get(FORMATS[name].reader, "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"),
    ]

    def seconds(size: int, step: int) -> float:
        best = 60.0
        for _ in range(2):
            began = time.process_time()
            for begin in begins:
                text = (begin + HOSTILE[what] * (size // len(HOSTILE[what])))[:size]
                parser = make_with_tools(name)
                for at in range(0, len(text), step):
                    parser.push([(text[at : at + step], False)])
                parser.finish("stop")
            best = min(best, time.process_time() - began)
        return best

    for size, step in ((20_000, 80_000), (2_500, 1)):
        small, large = seconds(size, step), seconds(size * 4, step)
        assert large < 9 * max(small, 0.004), (step, small, large)


@pytest.mark.parametrize("what", ["angles", "beginnings", "members", "blocks", "headers", "elements"])
@pytest.mark.parametrize("name", ["kimi_k25", "glm47", "hermes"])
def test_a_megabyte_of_marks(name: str, what: str) -> None:
    text = ("<tool_call>" if what == "elements" else "") + HOSTILE[what] * (1_000_000 // len(HOSTILE[what]))
    parser = make_with_tools(name)
    began = time.process_time()
    parser.push([(text, False)])
    parser.finish("stop")
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("name", "begin", "more"),
    [
        ("kimi_k25", "", "some text < and <|more"),
        ("kimi_k25", "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{", '"s": "x\\"", '),
        ("glm47", "", "some text </thin <tool_cal"),
        ("glm47", BEGIN["glm"], "a string </arg_valu <tool_call>"),
        ("hermes", BEGIN["hermes"], "text </tool_call>"),
        ("think", "<think>", "thoughts </thin"),
        ("none", "", "text <think>"),
    ],
)
def test_nothing_is_kept_but_what_waits(name: str, begin: str, more: str) -> None:
    parser = make_with_tools(name, StartState.NONE)
    parser.push([(begin + more, False)])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            parser.push([(more, False)])
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
