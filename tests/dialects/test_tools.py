from __future__ import annotations

import pytest

from stoker.dialects.fields import Fields
from stoker.dialects.openai_chat import decode_chat
from stoker.dialects.tools import check_tool_choice, read_function, read_tool_choice
from stoker.types.chat import Tool, ToolChoice
from stoker.types.errors import StokerError


def choice(**body) -> ToolChoice:
    return read_tool_choice(Fields(body))


NAMED = ToolChoice(mode="required", names=("f",))
F, G = {"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "g"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        (F, NAMED),
        ({"type": "function", "name": "f"}, NAMED),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [F, G]}}, ToolChoice(names=("f", "g"))),
        ({"type": "allowed_tools", "mode": "required", "tools": [G]}, ToolChoice(mode="required", names=("g",))),
    ],
)
def test_choices(given, expected):
    assert choice(tool_choice=given) == expected


@pytest.mark.parametrize(("given", "parallel"), [(None, True), (True, True), (False, False)])
def test_parallel_calls(given, parallel):
    assert choice(parallel_tool_calls=given) == ToolChoice(parallel=parallel)
    assert choice(parallel_tool_calls=given, tool_choice=F).parallel is parallel


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        ("sometimes", "invalid_value", "tool_choice"),
        (5, "invalid_type", "tool_choice"),
        ({}, "missing_required_parameter", "tool_choice.type"),
        ({"type": "custom"}, "invalid_value", "tool_choice.type"),
        ({"type": "function"}, "missing_required_parameter", "tool_choice.name"),
        ({"type": "function", "function": {}}, "missing_required_parameter", "tool_choice.function.name"),
        ({"type": "allowed_tools", "tools": []}, "missing_required_parameter", "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": [5]}, "invalid_type", "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "tools": [F] * 257}, "array_above_max_length", "tool_choice.tools"),
    ],
)
def test_wrong_choices_name_the_parameter(given, code, param):
    with pytest.raises(StokerError) as failure:
        choice(tool_choice=given)
    assert (failure.value.code, failure.value.param) == (code, param)


def test_what_is_forced_must_be_declared():
    check_tool_choice(NAMED, (Tool(name="f"),))
    check_tool_choice(ToolChoice(mode="none"), ())
    for wanted, tools in ((NAMED, (Tool(name="g"),)), (ToolChoice(mode="required"), ()), (NAMED, ())):
        with pytest.raises(StokerError) as failure:
            check_tool_choice(wanted, tools)
        assert failure.value.param == "tool_choice"


def test_schemas_of_any_sensible_depth():
    def nested(depth: int):
        return {} if depth == 0 else {"x": nested(depth - 1)}

    assert read_function(Fields({"name": "f", "parameters": nested(31)})).parameters == nested(31)
    with pytest.raises(StokerError) as failure:
        read_function(Fields({"name": "f", "parameters": nested(32)}, "tools[0]"))
    assert failure.value.param == "tools[0].parameters"


def test_in_a_chat():
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [F]}
    assert decode_chat(body | {"tool_choice": F}, session=None).tool_choice == NAMED
    kept = decode_chat(body | {"tool_choice": "none"}, session=None)
    assert (kept.tools, kept.tool_choice.mode) == ((Tool(name="f"),), "none")  # the prompt, and its cache, stay as is
    assert decode_chat(body, session=None).constrain_tools
    assert not decode_chat(body | {"constrain_tools": False}, session=None).constrain_tools
    with pytest.raises(StokerError):
        decode_chat(body | {"tools": [], "tool_choice": "required"}, session=None)
