"""What the goldens do not say: outputs that models and gateways really get wrong, one rule each."""

from __future__ import annotations

import pytest
from parse_cases import Result, texts

from stoker.models.text.parse.engine import OutputParser
from stoker.models.text.parse.format import FORMATS, StartState, format_of
from stoker.types.chat import Tool

OBJECT = {"type": "object", "properties": {"q": {"type": "string"}, "k": {"type": "integer"}}, "required": ["q"]}
TOOLS = (
    Tool(name="search", parameters=OBJECT),
    Tool(name="search2", parameters={"type": "object", "properties": {"x": {}}, "required": ["x"]}),
    Tool(name="now", parameters={"type": "object", "properties": {}}),
)


def parse(name: str, text: str, *, end: str = "stop", start: str = "content", tools=TOOLS, **options) -> Result:
    """Whole and letter by letter, which must agree."""
    results = []
    for parts in ((text,), text):
        parser = OutputParser(FORMATS[name], index=3, tools=tools, start=StartState(start), **options)
        events = [event for pieces in texts(*parts) for event in parser.push(pieces)]
        last, reason = parser.finish(end)
        results.append(Result.of([*events, *last], reason))
    assert results[0].plain == results[1].plain
    return results[0]


def calls(result: Result) -> list[tuple[str, str, bool | None, bool | None]]:
    return [call.plain for call in result.calls]


def kimi(header: str, arguments: str = '{"q":"a"}') -> str:
    return f"<|tool_call_begin|>{header}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("header", "name", "id"),
    [
        ("functions.search:0", "search", "functions.search:0"),
        ("search:12", "search", "functions.search:12"),
        ("functions.a:b:3", "a:b", "functions.a:b:3"),
        ("functions_search_4", "search", "functions.search:5"),
        ("functions:search:4", "search", "functions.search:5"),
        ("functions_search:4", "search", "functions.search:5"),
        ("functions.search", "search", "functions.search:5"),
        ("search", "search", "functions.search:5"),
        ("functionssearch27", "search2", "functions.search2:5"),
        ("functions.other:4", "other", "functions.other:4"),
        ("call_1a", "call_1a", "functions.call_1a:5"),
    ],
)
def test_kimi_headers(header: str, name: str, id: str) -> None:
    [call] = parse("kimi_k2", kimi(header), history_tool_calls=5).calls
    assert (call.name, call.id) == (name, id)


def test_kimi_ids_stay_unique_when_the_next_one_is_taken() -> None:
    result = parse("kimi_k2", kimi("functions.now:1", "{}") * 3)
    assert [call.id for call in result.calls] == ["functions.now:1", "functions.now:2", "functions.now:3"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [('{"q":"a"}', "search"), ('{"x":1}', "search2"), ("{}", "now"), ('{"z":1}', "8"), ("[1]", "8"), ('{"q"', "8")],
)
def test_a_bare_number_is_named_by_its_arguments(arguments: str, name: str) -> None:
    [call] = parse("kimi_k2", kimi("8", arguments)).calls
    assert call.name == name
    assert call.arguments == arguments


def test_a_bare_number_cut_off_is_no_call() -> None:
    text = kimi("8").removesuffix("<|tool_call_end|>")
    assert parse("kimi_k2", text[:-1], end="length").calls == []
    assert [call.name for call in parse("kimi_k2", text, end="length").calls] == ["search"]


def test_kimi_without_any_header_is_named_or_dropped() -> None:
    assert [call.name for call in parse("kimi_k2", kimi("") + kimi("", '{"z":1}') + kimi(" ")).calls] == ["search"] * 2


@pytest.mark.parametrize(
    ("arguments", "complete"), [('{"q":"a"}', True), ('{"q":"a"', False), ('{"q":"a"} x', False), ("[1]", False)]
)
def test_kimi_without_end_is_complete_if_its_object_is(arguments: str, complete: bool) -> None:
    result = parse("kimi_k2", kimi("search:0", arguments).removesuffix("<|tool_call_end|>"))
    assert calls(result) == [("search", arguments, complete, complete)]
    assert result.finish_reason == ("tool_calls" if complete else "stop")


def test_kimi_text_after_a_bare_call_is_content() -> None:
    assert parse("kimi_k2", kimi("now:0", "{}") + " so").content == " so"


def test_kimi_white_space_before_thoughts_is_kept_behind_them() -> None:
    result = parse("kimi_k25", "\n<think>hm</think>Hi\n<think>")
    assert (result.reasoning, result.content) == ("hm", "\nHi\n<think>")


@pytest.mark.parametrize("start", ["reasoning", "content"])
def test_stray_kimi_markers_are_dropped(start: str) -> None:
    text = "a<|tool_call_end|>b<|tool_calls_section_end|>c<|tool_call_argument_begin|>d<|tool_call_section_end|>e"
    result = parse("kimi_k25", text, start=start)
    assert result.reasoning + result.content == "abcde"


def test_kimi_markers_without_tools_do_not_end_reasoning() -> None:
    result = parse("kimi_k25", "a<|tool_call_begin|>b</think>c<|tool_call_end|>d", start="reasoning", tools=())
    assert (result.reasoning, result.content) == ("ab", "cd")


def test_kimi_marks_in_arguments_keep_stop_texts_that_are_not_last() -> None:
    arguments = '{"q":"<|im_end|> and [EOS]"}'
    assert calls(parse("kimi_k2", kimi("search:0", arguments) + "<|im_end|>")) == [("search", arguments, True, True)]


def glm(*members: str, name: str = "search") -> str:
    return f"<tool_call>{name}{''.join(members)}</tool_call>"


def member(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


@pytest.mark.parametrize(
    ("text", "arguments", "complete"),
    [
        (glm(member("q", 'a"\\\n\u2028')), '{"q":"a\\"\\\\\\n\u2028"}', True),
        (glm(member("q", "<|user|>x")), '{"q":"<|user|>x"}', True),
        (glm("<arg_key>q</arg_key>", member("k", "1")), '{"k":1}', True),
        (glm("<arg_key>q", member("k", "1")), '{"k":1}', True),
        (glm(member("k", "1"), "<arg_key>q</arg_key>"), '{"k":1}', True),
        (glm(member("k", "1"), " junk ", member("q", "")), '{"k":1,"q":""}', True),
        (glm("<arg_key>q</arg_key></arg_value>"), '{"q":""}', True),
        (glm("<arg_key>q</arg_key>\n two words</arg_value>"), '{"q":"two words"}', True),
        (glm(member("k", "1")) .removesuffix("</tool_call>") + "<tool_call>now</tool_call>", '{"k":1}', True),
        ("<tool_call>search<arg_key>q<tool_call>now</tool_call>", "", False),
        ("<tool_call>search<arg_key>q</arg_key><arg_value>x", '{"q":"x', False),
    ],
)  # fmt: skip
def test_glm_calls(text: str, arguments: str, complete: bool) -> None:
    first = parse("glm47", text).calls[0]
    assert first.plain == ("search", arguments, complete, complete)
    rest = parse("glm47", text).calls[1:]
    assert calls_of(rest) == ([("now", "{}", True, True)] if "now" in text else [])


def calls_of(found) -> list[tuple[str, str, bool | None, bool | None]]:
    return [call.plain for call in found]


def test_glm_value_without_end_closes_at_the_call_and_the_rest_is_read_again() -> None:
    text = "<tool_call>search<arg_key>q</arg_key><arg_value>a</tool_call>so<tool_call>now</tool_call>."
    result = parse("glm47", text)
    assert calls(result) == [("search", '{"q":"a"}', True, True), ("now", "{}", True, True)]
    assert result.content == "so."
    cut = parse("glm47", text, end="length")
    assert calls(cut) == [("search", '{"q":"a', False, False)]
    assert cut.content == ""


def test_glm_marks_in_a_value_are_data_if_its_end_comes() -> None:
    text = "a</tool_call>b<tool_call>c</tool_call><|user|>d"
    assert calls(parse("glm47", glm(member("q", text)))) == [("search", f'{{"q":"{text}"}}', True, True)]


def test_a_tag_in_prose_is_no_call() -> None:
    text = "Write <tool_call> around </think> it,\nthen <tool_call>\nsearch for\nmore"
    result = parse("glm47", text)
    assert result.calls == []
    assert result.content == text.replace("</think>", "")
    assert parse("glm47", "<tool_call>" + " now \n" * 5000, end="length").content.count("now") == 5000


def test_a_name_that_is_none_makes_no_call() -> None:
    assert parse("glm47", glm(member("q", "x"), name=" ") + "then").plain == ("stop", "", "then", [])


def hermes(block: str) -> str:
    return f"<tool_call>\n{block}\n</tool_call>"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ('{"name": "now", "arguments": null}', [("now", "{}", True, True)]),
        ('{"name": "now", "arguments": [1]}', [("now", "[1]", True, False)]),
        ('{"name": "now", "arguments": "no"}', [("now", '"no"', True, False)]),
        ('{"arguments": "{\\"q\\": 1}", "name": "now"}', [("now", '{"q": 1}', True, True)]),
        ('{"id": 7, "name": "now", "x": [{"name": "y"}]}', [("now", "{}", True, True)]),
        ('{"name": "now", "name": "search", "arguments": {}}', [("now", "{}", True, True)]),
        ('{"name": "now", "parameters": {}, "arguments": {"q": 1}}', [("now", "{}", True, True)]),
        ('{"name": "now", "arguments": {"a": {"b": [1]}}', [("now", '{"a": {"b": [1]}}', True, True)]),
        ('{"name": "now", "arguments": {"a": tru}}', [("now", '{"a": tru}}\n', True, False)]),
        ('{"name": "now"', [("now", "{}", True, True)]),
        ('{"name": "now", "arguments" {"a": 1}', [("now", '{"a": 1}\n', True, True)]),
        ('{"name": "now", arguments: {"a": 1}}', [("now", 'arguments: {"a": 1}}\n', True, False)]),
        ('{"name": "now"} {"name": "search"}', [("now", "{}", True, True), ("search", "{}", True, True)]),
        ('{"name": "now"},\n{"name": "search"}', [("now", "{}", True, True), ("search", "{}", True, True)]),
        ('{"n\\u0061me": "now"}', [("now", "{}", True, True)]),
    ],
)
def test_hermes_blocks(block: str, expected: list) -> None:
    result = parse("hermes", hermes(block))
    assert calls(result) == expected
    assert result.content == ""


@pytest.mark.parametrize(
    "block",
    [
        "no json",
        "[]",
        "[1]",
        '["name"]',
        '{"x": 1}',
        '{"name": 1}',
        '{"name": ""}',
        '{"name": "\\ud800"}',
        '{"x": "</tool_call>"}',
        "{} {}",
        "",
        '{"arguments": {',
        "{'name': 'now'}",
    ],
)
def test_a_hermes_block_that_is_no_call_stays_in_the_text(block: str) -> None:
    text = f"a {hermes(block)} b"
    assert parse("hermes", text).plain == ("stop", "", text, [])


def test_what_follows_a_call_in_its_block_is_text() -> None:
    result = parse("hermes", 'a<tool_call>{"name": "now"} is what I do {"name": "now"}</tool_call> b')
    assert calls(result) == [("now", "{}", True, True)]
    assert result.content == 'ais what I do {"name": "now"} b'
    result = parse("hermes", '<tool_call>[{"name": "now"}, 5]</tool_call>')
    assert (result.content, len(result.calls)) == ("5]", 1)


@pytest.mark.parametrize(
    ("text", "stop", "length"),
    [
        ('<tool_call>{"name": "now", "arguments": {}', True, False),
        ('<tool_call>{"name": "now", "arguments": {}}', True, True),
        ('<tool_call>{"name": "now", "arguments": {', False, False),
        ('<tool_call>{"name": "now"', False, False),
    ],
)
def test_hermes_cut_off(text: str, stop: bool, length: bool) -> None:
    assert [call.complete for call in parse("hermes", text).calls] == [stop]
    assert [call.complete for call in parse("hermes", text, end="length").calls] == [length]


def test_a_truncated_header_is_not_shown() -> None:
    for name, text in (
        ("hermes", '<tool_call>{"name": "no'),
        ("glm47", "<tool_call>no"),
        ("kimi_k2", "<|tool_call_begin|>no"),
    ):
        assert parse(name, text, end="length").plain == ("length", "", "", [])


@pytest.mark.parametrize("name", ["glm45", "hermes", "think"])
def test_white_space_beside_tags_is_layout(name: str) -> None:
    result = parse(name, " \n<think>\n a \n</think>\n\n b \n", start="none")
    assert (result.reasoning, result.content) == ("a", "b \n")
    assert parse(name, "\n\nb \n\nc\n").content == "\n\nb \n\nc\n"


def test_white_space_around_calls() -> None:
    call = "<tool_call>now</tool_call>"
    assert parse("glm47", f"\n{call}\n{call}\n").content == ""
    assert parse("glm47", f"a\n{call}\n").content == "a"
    assert parse("glm47", f"a {call} b\n").content == "a  b\n"


def test_control_tokens_nobody_knows_are_dropped() -> None:
    for name in FORMATS:
        parser = OutputParser(FORMATS[name], control_known=True)
        events = parser.push([("a", False), ("<|reserved_7|>", True), ("b<|reserved_7|>", False)])
        assert [event.text for event in [*events, *parser.finish("stop")[0]]] == ["ab<|reserved_7|>"]


def test_reasoning_says_where_we_are() -> None:
    parser = OutputParser(FORMATS["think"], start=StartState.NONE)
    seen = [parser.reasoning]
    for part in ("\n", "<think>", "a", "</think>", "b"):
        parser.push([(part, False)])
        seen.append(parser.reasoning)
    assert seen == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("family", "format"),
    [
        ("kimi_k2_thinking", "kimi_k25"),
        ("kimi_k26_preserve", "kimi_k25"),
        ("glm5", "glm47"),
        ("glm53_flash", "glm47"),
        ("glm45", "glm45"),
        ("plain", "none"),
        ("hermes", "hermes"),
    ],
)
def test_families(family: str, format: str) -> None:
    assert format_of(family).name == format


def test_no_marker_begins_another() -> None:
    """The first marker found is the one that was meant only if no longer one begins with it."""
    for format in FORMATS.values():
        for mark in format.marks:
            assert not [other for other in format.marks if other != mark and other.startswith(mark)]
