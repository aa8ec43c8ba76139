"""The lines of parser.jsonl as parser runs: how to cut them, what comes out, and whether that is what is expected."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from shared_data import SHARED, read_lines

from stoker.models.text.parse.engine import OutputParser
from stoker.models.text.parse.format import Format, Piece, StartState, format_of
from stoker.models.text.parse.pieces import control_pieces, spelled_marks
from stoker.models.text.vocabulary import Vocabulary, read_vocabulary
from stoker.service.pieces import PieceReader
from stoker.types.chat import Delta, ReasoningDelta, TextDelta, Tool, ToolCallDelta, ToolCallDone, ToolCallStart

Case = dict[str, Any]
CASES: list[Case] = read_lines("parser.jsonl")
TEXT_CASES = [case for case in CASES if not case.get("needs_token_ids")]
ID_CASES = [case for case in CASES if "raw_token_ids" in case]
KIMI_MARK = re.compile(r"<\|tool_calls?_(section_)?(argument_)?(begin|end)\|>|<\|im_end\|>|\[EOS\]")


@dataclass
class Call:
    id: str
    name: str
    arguments: str = ""
    complete: bool | None = None
    valid: bool | None = None

    @property
    def plain(self) -> tuple[str, str, bool | None, bool | None]:
        return self.name, self.arguments, self.complete, self.valid


@dataclass
class Result:
    """What a client has at the end. Building it checks that the events make sense one after the other."""

    finish_reason: str
    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Delta], reason: str) -> Result:
        result = cls(reason)
        calls = result.calls
        for event in events:
            assert event.index == 3
            match event:
                case ReasoningDelta(text=text):
                    assert text
                    result.reasoning += text
                case TextDelta(text=text):
                    assert text
                    result.content += text
                case ToolCallStart(call=call, id=id, name=name):
                    assert call == len(calls)
                    assert not calls or calls[-1].complete is not None
                    assert id
                    assert name
                    calls.append(Call(id, name))
                case ToolCallDelta(call=call, arguments=arguments):
                    assert call == len(calls) - 1
                    assert calls[call].complete is None
                    assert arguments
                    calls[call].arguments += arguments
                case ToolCallDone(call=call, complete=complete, valid=valid):
                    assert call == len(calls) - 1
                    assert calls[call].complete is None
                    calls[call].complete, calls[call].valid = complete, valid
                    assert valid == is_object(calls[call].arguments)
        assert all(call.complete is not None for call in calls), "a call never ended"
        assert len({call.id for call in calls}) == len(calls)
        assert (reason == "tool_calls") <= any(call.complete for call in calls)
        return result

    @property
    def plain(self) -> tuple[Any, ...]:
        """Without ids, which may be random."""
        return self.finish_reason, self.reasoning, self.content, [call.plain for call in self.calls]


def is_object(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False


def tools_of(case: Case) -> list[Tool]:
    functions = [tool["function"] for tool in case["tools"] or []]
    return [Tool(name=function["name"], parameters=function.get("parameters")) for function in functions]


def parser_of(case: Case, *, control_known: bool = False) -> OutputParser:
    request = case["request"]
    choice = request["tool_choice"]
    return OutputParser(
        format_of(case["family"]),
        index=3,
        tools=tools_of(case),
        tool_choice=choice if isinstance(choice, str) else "named",
        start=StartState(case["start_state"]),
        history_tool_calls=request["history_tool_calls"],
        control_known=control_known,
    )


Ending = Literal["stop", "length", "abort"]


def run(
    case: Case, pushes: Iterable[Sequence[Piece]], *, control_known: bool = False, end: Ending | None = None
) -> Result:
    parser = parser_of(case, control_known=control_known)
    events: list[Delta] = []
    for pieces in pushes:
        events += parser.push(pieces)
    last, reason = parser.finish(end or case["engine_finish"])
    return Result.of([*events, *last], reason)


def texts(*parts: str) -> list[list[Piece]]:
    """One push for each part, nothing known of tokens."""
    return [[(part, False)] for part in parts if part]


def by_bytes(text: str) -> list[list[Piece]]:
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    return texts(*(decoder.decode(bytes([byte])) for byte in text.encode()))


def tokens(case: Case, *, control: bool) -> list[Piece]:
    """The output in pseudo tokens: marks whole, other text in words and odd pieces of them."""
    marks = "|".join(re.escape(mark) for mark in sorted(format_of(case["family"]).marks, key=len, reverse=True))
    pattern = re.compile(rf"(?P<mark>{marks})|<|\s+\w{{0,3}}|\w{{1,4}}|[^\w\s<]{{1,2}}", re.DOTALL)
    found = list(pattern.finditer(case["raw_text"]))
    assert "".join(token[0] for token in found) == case["raw_text"]
    known = format_of(case["family"]).spelled
    return [(token[0], control and token["mark"] is not None and token[0] not in known) for token in found]


def grouped(pieces: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [pieces[at : at + size] for at in range(0, len(pieces), size)]


@cache
def kimi_vocabulary() -> Vocabulary:
    return read_vocabulary(SHARED / "conformance" / "kimi_tokenizer")


def from_ids(case: Case, groups: Iterable[Sequence[int]]) -> list[list[Piece]]:
    """Pushes as a server makes them of token ids."""
    vocabulary, format = kimi_vocabulary(), format_of(case["family"])
    assert spelled_marks(vocabulary, format) == format.spelled
    reader = PieceReader(vocabulary.detokenizer(skip_special=False), control_pieces(vocabulary, format))
    return [*(reader.push(ids) for ids in groups), reader.finish()]


def check(case: Case, result: Result) -> None:
    """What the README of the pack asks of one line."""
    expected = case["expected"]
    same = (lambda text: " ".join(text.split())) if case["compare"] == "ws" else str
    assert result.finish_reason == expected["finish_reason"]
    assert same(result.reasoning) == same(expected.get("reasoning") or "")
    assert same(result.content) == same(expected.get("content") or "")
    assert [call.name for call in result.calls] == [call["name"] for call in expected["tool_calls"]]
    for call, wanted in zip(result.calls, expected["tool_calls"], strict=True):
        assert call.complete == wanted["complete"]
        if "id" in wanted:
            assert call.id == wanted["id"]
        if "arguments" in wanted:
            assert call.arguments == wanted["arguments"]
        if "arguments_json" in wanted:
            assert same_json(json.loads(call.arguments), wanted["arguments_json"]), call.arguments
        if "arguments_partial_of" in wanted:
            assert is_part(call.arguments, wanted["arguments_partial_of"]), call.arguments
        assert call.valid == (call.complete and wanted.get("arguments_valid", True))


def joined(deltas: list[dict[str, Any]]) -> tuple[str, str, list[dict[str, Any]]]:
    """What a client of a stream puts together."""
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    content = "".join(delta.get("content") or "" for delta in deltas)
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            else:
                assert part["index"] == len(calls) - 1
                assert "id" not in part
            calls[-1]["arguments"] += part["function"]["arguments"]
    return reasoning, content, calls


def check_answer(case: Case, answer: dict[str, Any]) -> None:
    """The message is the expected one, and the stream comes to the same."""
    assert list(answer) == ["id", "reasoning", "content", "tool_calls", "finish_reason", "deltas"]
    calls = [
        Call(
            call["id"],
            call["name"],
            call["arguments"],
            call["complete"],
            call["complete"] and "arguments_valid" not in call,
        )
        for call in answer["tool_calls"]
    ]
    check(case, Result(answer["finish_reason"], answer["reasoning"], answer["content"], calls))
    plain = [{key: call[key] for key in ("id", "name", "arguments")} for call in answer["tool_calls"]]
    assert joined(answer["deltas"]) == (answer["reasoning"], answer["content"], plain)


def same_json(found: Any, expected: Any) -> bool:
    """Types count: an integer must be one, a float may be any equal number, true is not 1."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, float):
        return isinstance(found, int | float) and found == expected
    if type(found) is not type(expected):
        return False
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same_json(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same_json, found, expected))
    return found == expected


def is_part(streamed: str, whole: Any) -> bool:
    """Whether `streamed` begins the compact JSON of `whole`, white space outside of strings and a last key aside."""
    compact = re.sub(r'("(?:[^"\\]|\\.)*"?)|\s+', lambda match: match[1] or "", streamed)
    full = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    without_key = re.sub(r'[,{]?"[^"]*":?$', "", compact)
    return full.startswith((compact, without_key))


def format_for(case: Case) -> Format:
    return format_of(case["family"])
