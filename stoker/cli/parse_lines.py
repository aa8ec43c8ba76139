"""One recorded output -> the message a client gets, and the stream it would have got. Owns the form of the lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from stoker.dialects.encoder import Head
from stoker.dialects.openai_chat_encode import ChatStream
from stoker.models.text.parse.engine import OutputParser
from stoker.models.text.parse.format import Format, Piece, StartState
from stoker.models.text.parse.pieces import control_pieces, spelled_marks
from stoker.models.text.vocabulary import Vocabulary
from stoker.service.pieces import PieceReader
from stoker.types.chat import (
    ChatRequest,
    ChoiceDone,
    Event,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
)


class _Declared(msgspec.Struct):
    function: Tool


class _Request(msgspec.Struct):
    tool_choice: str | dict[str, Any] = "auto"
    history_tool_calls: int = 0


class _Line(msgspec.Struct):
    raw_text: str | None = None
    raw_token_ids: list[int] | None = None
    tools: list[_Declared] | None = None
    request: _Request = msgspec.field(default_factory=_Request)
    start_state: StartState = StartState.NONE
    engine_finish: Literal["stop", "length", "abort"] = "stop"


def parse_line(
    line: dict[str, Any], format: Format, vocabulary: Vocabulary | None, split: int | None
) -> dict[str, Any]:
    """`vocabulary` reads token ids where the line has them; fed `split` ids or characters at a time, or all at once.
    Raises ValueError where the line is not what it should be."""
    try:
        given = msgspec.convert(line, _Line)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    known = None if given.raw_token_ids is None else vocabulary
    choice = given.request.tool_choice
    parser = OutputParser(
        format,
        tools=[declared.function for declared in given.tools or ()],
        tool_choice=choice if isinstance(choice, str) else "required",
        start=given.start_state,
        history_tool_calls=given.request.history_tool_calls,
        control_known=known is not None,
        spelled=() if known is None else spelled_marks(known, format),
    )
    events: list[Event] = []
    for pieces in _pushes(given, format, known, split):
        events += parser.push(pieces)
    last, reason = parser.finish(given.engine_finish)
    return _message([*events, *last, ChoiceDone(index=0, reason=reason)])


def _pushes(line: _Line, format: Format, vocabulary: Vocabulary | None, split: int | None) -> Iterator[Sequence[Piece]]:
    ids, text = line.raw_token_ids, line.raw_text
    if vocabulary is not None and ids is not None:
        reader = PieceReader(vocabulary.detokenizer(skip_special=False), control_pieces(vocabulary, format))
        for at in range(0, len(ids), split or len(ids) or 1):
            yield reader.push(ids[at : at + split] if split else ids)
        yield reader.finish()
    elif text is not None:
        for at in range(0, len(text), split or len(text) or 1):
            yield [(text[at : at + split] if split else text, False)]
    else:
        raise ValueError(
            "the line has no raw_text" + ("" if ids is None else ", and there is no tokenizer for its ids")
        )


def _message(events: Sequence[Event]) -> dict[str, Any]:
    """`arguments_valid` is in a call where it is complete, but its arguments are not a JSON object."""
    parts: dict[str, list[str]] = {"reasoning": [], "content": []}
    calls: list[dict[str, Any]] = []
    stream = ChatStream(
        ChatRequest(model="", messages=()), Head(id="chatcmpl-parse", created=0, model="", fingerprint="")
    )
    deltas: list[Any] = []
    reason = ""
    for event in events:
        deltas += (json.loads(chunk)["choices"][0]["delta"] for chunk in stream.push(event))
        match event:
            case ReasoningDelta(text=text):
                parts["reasoning"].append(text)
            case TextDelta(text=text):
                parts["content"].append(text)
            case ToolCallStart(id=id, name=name):
                calls.append({"id": id, "name": name, "arguments": [], "complete": False})
            case ToolCallDelta(call=call, arguments=text):
                calls[call]["arguments"].append(text)
            case ToolCallDone(call=call, complete=complete, valid=valid):
                calls[call]["complete"] = complete
                if complete and not valid:
                    calls[call]["arguments_valid"] = False
            case ChoiceDone():
                reason = event.reason
            case _:
                pass
    for call in calls:
        call["arguments"] = "".join(call["arguments"])
    return {
        **{name: "".join(texts) for name, texts in parts.items()},
        "tool_calls": calls,
        "finish_reason": reason,
        "deltas": deltas,
    }
