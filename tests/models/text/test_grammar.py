"""What the grammar of each family takes and what it does not, read token by token over real vocabularies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.models.text.grammar import MAX_TOOLS, grammars
from stoker.models.text.guidance import GrammarError, Guide
from stoker.models.text.model import TextModel
from stoker.models.text.parse.format import FORMATS as RULES
from stoker.types.chat import (
    ChatRequest,
    GrammarOutput,
    JsonOutput,
    Message,
    RegexOutput,
    ResponseFormat,
    SchemaOutput,
    Tool,
    ToolCall,
    ToolChoice,
)
from stoker.types.errors import StokerError

FORMATS = ("kimi_k2", "kimi_k25", "glm45", "glm47", "hermes")
WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
        "required": ["city"],
    },
)
NOW = Tool(name="now", parameters={"type": "object", "properties": {}})
CALLS = {  # a call of get_weather, one of now, and both
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        '<|tool_call_begin|>functions.get_weather:{n}<|tool_call_argument_begin|>{{"city": "Oslo", "days":3}}'
        "<|tool_call_end|>",
        "<|tool_call_begin|>functions.now:{n}<|tool_call_argument_begin|>{{}}<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "glm45": (
        "",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value> Oslo\n</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>",
        "\n<tool_call>now\n</tool_call>",
        "",
    ),
    "glm47": (
        "",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>metric</arg_key>"
        "<arg_value>true</arg_value></tool_call>",
        "<tool_call>now</tool_call>",
        "",
    ),
    "hermes": (
        "",
        '<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "Oslo", "metric":false}}}}\n</tool_call>',
        '\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
        "",
    ),
}
CALLS["kimi_k25"] = CALLS["kimi_k2"]
WRONG = {  # an undeclared name, a wrong type, a missing argument, one too many
    "kimi_k2": [
        ("functions.get_weather:", "functions.get_wether:"),
        ('"days":3', '"days":"3"'),
        ('"city": "Oslo", ', ""),
        ('"days":3', '"hours":3'),
        ("functions.now:{n}", "functions.now:17"),
    ],
    "glm45": [
        ("get_weather", "get_wether"),
        ("<arg_value>3<", "<arg_value>three<"),
        ("<arg_key>days<", "<arg_key>hours<"),
    ],
    "glm47": [("get_weather", "get_wether"), (">true<", ">yes<"), ("<arg_key>metric<", "<arg_key>hours<")],
    "hermes": [
        ('"get_weather"', '"get_wether"'),
        ('"metric":false', '"metric":"no"'),
        ('"city": "Oslo", ', ""),
        ('"metric"', '"hours"'),
    ],
}
WRONG["kimi_k25"] = WRONG["kimi_k2"]


@pytest.fixture(scope="module")
def demo(demo_text: TextModel) -> Guide:
    """A vocabulary without a token for any mark: all are ordinary text."""
    return Guide(demo_text)


@pytest.fixture(scope="module")
def tiny(tiny_text: TextModel) -> Guide:
    """A vocabulary with tokens for `<think>`, `<tool_call>` and their ends."""
    return Guide(tiny_text)


@pytest.fixture(params=["demo", "tiny"])
def guide(request: pytest.FixtureRequest) -> Guide:
    return request.getfixturevalue(request.param)


def ask(
    *tools: Tool,
    mode: str = "required",
    output: ResponseFormat | None = None,
    history: int = 0,
    **choice: Any,
) -> ChatRequest:
    calls = tuple(ToolCall(id=f"functions.now:{i}", name="now", arguments="{}") for i in range(history))
    return ChatRequest(
        model="m",
        messages=(Message(role="user", content="Hi."), Message(role="assistant", tool_calls=calls)),
        tools=tools,
        tool_choice=ToolChoice(mode=mode, **choice),  # pyright: ignore[reportArgumentType]
        response_format=output,
    )


def takes(guide: Guide, grammar: str, text: str) -> bool:
    """Does the grammar take exactly this text, marks as tokens where there are such?"""
    matcher = guide.compile(grammar)
    ids = guide.text.encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def calls_of(format: str, *which: int, before: int = 0) -> str:
    opening, *calls, closing = CALLS[format]
    return opening + "".join(calls[i].format(n=before + at) for at, i in enumerate(which)) + closing


@pytest.mark.parametrize("format", FORMATS)
def test_a_required_call_is_a_declared_one_with_arguments_of_its_schema(guide: Guide, format: str) -> None:
    (grammar, _) = grammars(ask(WEATHER, NOW, history=2), format, guide.control)
    for which in ((0,), (0, 1), (0, 1, 1)):
        assert takes(guide, grammar, calls_of(format, *which, before=2)), which
    # white space before a call is layout in some families and content in others
    assert takes(guide, grammar, "\n" + calls_of(format, 0, before=2)) == RULES[format].layout
    assert not takes(guide, grammar, "")
    assert not takes(guide, grammar, "Let me look. " + calls_of(format, 0, before=2))
    assert not takes(guide, grammar, calls_of(format, 0, before=2)[:-3])
    for right, wrong in WRONG[format]:
        opening, first, second, closing = CALLS[format]
        text = (first + second).replace(right, wrong)
        assert text != first + second
        assert not takes(guide, grammar, opening + text.format(n=2) + closing), wrong


@pytest.mark.parametrize("format", FORMATS)
def test_auto_is_free_text_until_a_call_begins(guide: Guide, format: str) -> None:
    (grammar, _) = grammars(ask(WEATHER, NOW, mode="auto"), format, guide.control)
    for text in ("", "Hello there.", "a < b, {c}\n", "Let me look.\n"):
        assert takes(guide, grammar, text)
        assert takes(guide, grammar, text + calls_of(format, 0, 1))
    for right, wrong in WRONG[format]:
        opening, first, second, closing = CALLS[format]
        assert not takes(
            guide, grammar, "So: " + opening + (first + second).replace(right, wrong).format(n=0) + closing
        )
    opening, first, *_ = CALLS[format]
    assert not takes(guide, grammar, (opening + first)[:-5].format(n=0)), "a call that has begun must end"


def test_what_does_not_constrain_has_no_grammar() -> None:
    assert grammars(ask(), "hermes", {}) == ()
    assert grammars(ask(WEATHER, mode="none"), "hermes", {}) == ()
    free = ChatRequest(model="m", messages=(), tools=(WEATHER,), constrain_tools=False)
    assert grammars(free, "hermes", {}) == ()
    assert grammars(ask(WEATHER, mode="auto"), "none", {}) == ()
    with pytest.raises(StokerError, match="no known form"):
        grammars(ask(WEATHER), "none", {})


@pytest.mark.parametrize("format", FORMATS)
def test_one_call_where_the_client_wants_one_and_only_tools_it_names(demo: Guide, format: str) -> None:
    single = grammars(ask(WEATHER, NOW, parallel=False), format, demo.control)[0]
    assert takes(demo, single, calls_of(format, 0))
    assert not takes(demo, single, calls_of(format, 0, 1))
    named = grammars(ask(WEATHER, NOW, names=("get_weather",)), format, demo.control)[0]
    assert takes(demo, named, calls_of(format, 0))
    assert not takes(demo, named, calls_of(format, 0, 0))
    only = grammars(ask(WEATHER), format, demo.control)[0]
    assert takes(demo, only, calls_of(format, 0))
    assert not takes(demo, only, calls_of(format, 0, 0))
    allowed = grammars(ask(WEATHER, NOW, names=("now",), mode="auto"), format, demo.control)[0]
    assert takes(demo, allowed, "Hm.")
    assert not takes(demo, allowed, calls_of(format, 0))


@pytest.mark.parametrize("white", ["", " ", "\n", "\n" + " " * 24])
def test_white_space_in_json_is_what_people_write_and_bounded(guide: Guide, white: str) -> None:
    for output in (JsonOutput(), SchemaOutput(schema={"type": "object", "properties": {"a": {"type": "integer"}}})):
        grammar = grammars(ask(mode="auto", output=output), "hermes", guide.control)[0]
        assert takes(guide, grammar, f'{{{white}"a"{white}:{white}1{white}}}')
        assert not takes(guide, grammar, f'{{{white}  "a":1}}') or white == "\n"
        assert not takes(guide, grammar, '{"a":' + " " * 26 + "1}")
        assert not takes(guide, grammar, '{"a":1}' + white + " ")


def test_a_schema_that_does_not_speak_of_more_properties_takes_none(demo: Guide) -> None:
    inner = {"type": "object", "properties": {"b": {"type": "null"}}}
    schema: dict[str, Any] = {"type": "object", "properties": {"a": inner}, "required": ["a"]}

    def good(schema: dict[str, Any], value: object) -> bool:
        grammar = grammars(ask(mode="auto", output=SchemaOutput(schema=schema)), "hermes", demo.control)[0]
        return takes(demo, grammar, json.dumps(value))

    assert good(schema, {"a": {"b": None}})
    assert not good(schema, {"a": {"b": None, "c": 1}})
    assert not good(schema, {"a": {}, "c": 1})
    assert good({**schema, "additionalProperties": True}, {"a": {}, "c": 1})
    parts = {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}]}
    assert good({"type": "object", **parts}, {"a": 1, "b": 2}), "parts of a whole stay open for one another"


def test_strict_is_the_default_and_says_no_to_what_it_cannot_hold(demo: Guide) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3}
    found = grammars(ask(mode="auto", output=SchemaOutput(schema=schema)), "hermes", demo.control)
    assert len(found) == 1
    with pytest.raises(GrammarError):
        demo.trial(found[0])
    loose = grammars(ask(mode="auto", output=SchemaOutput(schema=schema, strict=False)), "hermes", demo.control)
    assert takes(demo, loose[0], "[1, 1]")
    assert takes(demo, loose[1], '{"any": ["JSON"]}')
    tool = Tool(name="f", parameters={"type": "object", "properties": {"a": schema}, "required": ["a"]})
    assert takes(demo, grammars(ask(tool), "hermes", demo.control)[0], _hermes("f", '{"a": [1, 1]}'))
    with pytest.raises(GrammarError):
        demo.compile(grammars(ask(Tool(name="f", parameters=tool.parameters, strict=True)), "hermes", {})[0])


def test_a_tool_whose_schema_is_no_good_still_gets_an_object(demo: Guide) -> None:
    broken = Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "strnig"}}, "required": ["a"]})
    exact, loose = grammars(ask(broken, WEATHER), "hermes", demo.control)
    with pytest.raises(GrammarError):
        demo.trial(exact)
    demo.trial(loose)
    assert takes(demo, loose, _hermes("f", '{"x": [null]}'))


def test_calls_or_an_answer_of_the_format(demo: Guide) -> None:
    for output, good, bad in (
        (JsonOutput(), '{"a": 1}', "text"),
        (RegexOutput(pattern=r"^[a-c]+\d/$"), "abc1/", "abc"),
        (GrammarOutput(grammar='start: "yes" | "no" /[!?]/'), "no!", "yes!"),
    ):
        auto = grammars(ask(NOW, mode="auto", output=output), "hermes", demo.control)[0]
        assert takes(demo, auto, good)
        assert takes(demo, auto, _hermes("now", "{}"))
        assert not takes(demo, auto, bad)
        alone = grammars(ask(mode="auto", output=output), "hermes", demo.control)[0]
        assert takes(demo, alone, good)
        assert not takes(demo, alone, bad)
        assert not takes(demo, alone, _hermes("now", "{}"))


def test_text_around_a_value_of_a_form_of_its_own_is_not_allowed(demo: Guide) -> None:
    for output in (RegexOutput(pattern="a|bc"), GrammarOutput(grammar='start: "a" | "bc"')):
        grammar = grammars(ask(mode="auto", output=output), "hermes", demo.control)[0]
        assert takes(demo, grammar, "a")
        assert takes(demo, grammar, "bc")
        for text in (" a", "a ", "ac", "b"):
            assert not takes(demo, grammar, text)


@pytest.mark.parametrize(
    "text",
    [
        "start: <|im_start|>",
        "start: <[1]>",
        '%llguidance {"no_forcing": true}\nstart: "a"',
        "start: @answer",
        'start: "a" // "\nstart2: <[*]>',
    ],
)
def test_a_clients_grammar_is_about_text_only(text: str) -> None:
    with pytest.raises(StokerError, match="may not contain"):
        grammars(ask(mode="auto", output=GrammarOutput(grammar=text)), "hermes", {})


def test_a_clients_grammar_may_speak_of_these_signs(demo: Guide) -> None:
    text = 'start: "<[1]>" /<a@b>/ %json {"type": "integer"} // <x>\n'
    grammar = grammars(ask(mode="auto", output=GrammarOutput(grammar=text)), "hermes", demo.control)[0]
    assert takes(demo, grammar, "<[1]><a@b>5")


def test_names_are_text_whatever_is_in_them(guide: Guide) -> None:
    for name in ('a"b\\', "ü</tool_call>", "x\ny", "#//{}", "%json {}", "<[0]>"):
        grammar = grammars(ask(Tool(name=name, parameters={})), "hermes", guide.control)[0]
        assert takes(guide, grammar, _hermes(name, "{}")) or "</tool_call>" in name
        assert not takes(guide, grammar, _hermes("other", "{}"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_sloppy_schema_breaks_nothing(demo: Guide, format: str) -> None:
    """It is not for us to mend it: if nothing else, any arguments will do."""
    for parameters in (
        {"properties": None, "required": None, "items": 5, "anyOf": {}, "allOf": "x", "enum": 3, "type": 7},
        {"properties": [1], "required": {"a": 1}, "$defs": [], "patternProperties": 1, "additionalProperties": []},
        {"properties": {"a": None, "b": [], "c": {"type": {"d": 1}}, "e": {"enum": {}}}, "required": [[2], 1]},
        {"properties": {"a": {"type": "string", "pattern": "(", "minLength": "x"}, "b": {"anyOf": 5}, "c": False}},
    ):
        found = grammars(ask(Tool(name="f", parameters=parameters)), format, demo.control)
        demo.trial(found[-1])


def test_too_many_tools_are_refused(demo: Guide) -> None:
    tools = [Tool(name=f"tool_{i}", parameters=WEATHER.parameters) for i in range(MAX_TOOLS)]
    for format in FORMATS:
        for mode in ("auto", "required"):
            demo.trial(grammars(ask(*tools, mode=mode), format, demo.control)[0])
    with pytest.raises(StokerError) as refused:
        grammars(ask(*tools, NOW), "hermes", demo.control)
    assert refused.value.code == "too_many_tools"


def _hermes(name: str, arguments: str) -> str:
    quoted = json.dumps(name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {quoted}, "arguments": {arguments}}}\n</tool_call>'
