"""Whatever a family's grammar lets through, its parser reads back as complete calls that the schemas accept."""

from __future__ import annotations

import json
import random
import zlib

import jsonschema
import numpy as np
import pytest
from random_schemas import random_schema

from stoker.models.text.grammar import grammars
from stoker.models.text.guidance import Guide
from stoker.models.text.model import TextModel
from stoker.models.text.parse.engine import OutputParser
from stoker.models.text.parse.format import FORMATS, StartState
from stoker.models.text.parse.pieces import control_pieces, spelled_marks
from stoker.types.chat import ChatRequest, Tool, ToolCallDelta, ToolCallDone, ToolCallStart, ToolChoice

SCHEMAS = 24
TOKENS = 1500
WITH_CALLS = ("kimi_k2", "kimi_k25", "glm45", "glm47", "hermes")


@pytest.fixture(scope="module")
def demo(demo_text: TextModel) -> Guide:
    return Guide(demo_text)


@pytest.fixture(scope="module")
def tiny(tiny_text: TextModel) -> Guide:
    return Guide(tiny_text)


@pytest.mark.parametrize("vocabulary", ["demo", "tiny"])
@pytest.mark.parametrize("format", WITH_CALLS)
def test_random_walks_are_valid_calls(format: str, vocabulary: str, request: pytest.FixtureRequest) -> None:
    guide: Guide = request.getfixturevalue(vocabulary)
    complete = 0
    for seed in range(SCHEMAS):
        tools = (Tool(name="look_up", parameters=random_schema(seed)), Tool(name="b", parameters=random_schema(~seed)))
        draw = random.Random(zlib.crc32(f"{format} {vocabulary} {seed}".encode()))
        asked = ChatRequest(model="m", messages=(), tools=tools, tool_choice=ToolChoice(mode="required"))
        ids = walk(guide, grammars(asked, format, guide.control)[0], draw)
        if ids is None:
            continue
        complete += 1
        for name, arguments in parsed(guide, format, tools, ids):
            schema = next(tool.parameters for tool in tools if tool.name == name)
            assert schema is not None
            jsonschema.validate(json.loads(arguments), schema)
    assert complete >= 0.9 * SCHEMAS


def walk(guide: Guide, grammar: str, draw: random.Random) -> list[int] | None:
    """Ids drawn evenly from what is allowed; None if they did not come to an end."""
    matcher = guide.compile(grammar)
    ids: list[int] = []
    while len(ids) < TOKENS:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        assert len(allowed), guide.text.decode(ids)
        index = int(allowed[draw.randrange(len(allowed))])
        if index in guide.text.eos_ids or (matcher.is_accepting() and len(ids) > TOKENS // 3):
            return ids
        assert matcher.consume_token(index)
        ids.append(index)
    return None


def parsed(guide: Guide, format: str, tools: tuple[Tool, ...], ids: list[int]) -> list[tuple[str, str]]:
    """The calls as a client gets them; asserts that there is nothing else and that all are whole."""
    vocabulary, rules = guide.text.vocabulary, FORMATS[format]
    parser = OutputParser(
        rules,
        tools=tools,
        tool_choice="required",
        start=StartState.CONTENT,
        control_known=True,
        spelled=spelled_marks(vocabulary, rules),
    )
    control = control_pieces(vocabulary, rules)
    detokenizer = guide.text.detokenizer(skip_special=False)
    events: list[object] = []
    for index in ids:
        piece = (control[index], True) if index in control else (detokenizer.push([index]), False)
        events += parser.push([piece])
    rest, reason = parser.finish("stop")
    assert reason == "tool_calls"
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for event in (*events, *rest):
        match event:
            case ToolCallStart(call=call, name=name):
                names[call], arguments[call] = name, ""
            case ToolCallDelta(call=call, arguments=more):
                arguments[call] += more
            case ToolCallDone(complete=complete, valid=valid):
                assert complete
                assert valid
            case _:
                raise AssertionError(f"{event} beside the calls in {guide.text.decode(ids)!r}")
    return [(names[call], arguments[call]) for call in names]
