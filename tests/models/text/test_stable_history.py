"""In a tool loop with reasoning, a turn's prompt begins with all of the turn before, prompt and output: what the prefix
cache lives on. Where a maker's rule forbids that, the tests say where and how much is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import msgspec
import pytest
from text_models import BUILT_IN, text_model

from stoker.models.text.family import Family
from stoker.models.text.parse.engine import OutputParser
from stoker.models.text.parse.format import format_of
from stoker.models.text.parse.pieces import control_pieces
from stoker.service.pieces import PieceReader
from stoker.types.chat import (
    ChatRequest,
    Message,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)

TOOLS = (
    Tool(
        name="edit",
        description="Change a file",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "line": {"type": "integer"}},
            "required": ["path"],
        },
    ),
    Tool(name="ls"),
)
START = ChatRequest(
    model="m",
    messages=(Message(role="system", content="You mend code."), Message(role="user", content="Mend 文件 a.py 😀")),
    tools=TOOLS,
)
ROUNDS = [
    ("Look first.\nThen edit.", None, [("ls", {})]),
    ("I see 三 files: a.py, b.py", "Editing both.", [("edit", {"path": "a.py", "line": 3}), ("edit", {"path": "b"})]),
    ("One more <b>bold</b> step", None, [("edit", {"path": "é.py", "text": "\tif x:\n\t\treturn '</x>'\n"})]),
    ("Done, I think.", None, [("ls", {})]),
]


def answer(number: int, reasoning: str | None, content: str | None, calls: list[tuple[str, Any]]) -> Message:
    made = (
        ToolCall(id=f"functions.{name}:{place}", name=name, arguments=json.dumps(arguments, ensure_ascii=False))
        for place, (name, arguments) in enumerate(calls, number)
    )
    return Message(role="assistant", reasoning=reasoning, content=content, tool_calls=tuple(made))


def kimi(turn: Message, think: str) -> str:
    calls = "".join(
        f"<|tool_call_begin|>{call.id}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
        for call in turn.tool_calls
    )
    section = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>" if calls else ""
    return f"{think}{turn.content or ''}{section}<|im_end|>"


def glm(turn: Message, think: str, line: str) -> str:
    text = think + (line + turn.content if turn.content else "")
    for call in turn.tool_calls:
        text += f"{line}<tool_call>{call.name}{line}"
        for key, value in json.loads(call.arguments).items():
            text += f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"
        text += "</tool_call>"
    return text + ("<|observation|>" if turn.tool_calls else "<|user|>")


def after_open(turn: Message) -> str:
    return f"{turn.reasoning or ''}</think>"


WRITES: dict[Family, Callable[[Message], str]] = {
    Family.KIMI_K2: lambda turn: kimi(turn, ""),
    Family.KIMI_K2_THINKING: lambda turn: kimi(turn, f"<think>{turn.reasoning}</think>"),
    Family.KIMI_K25: lambda turn: kimi(turn, after_open(turn)),
    Family.KIMI_K26_PRESERVE: lambda turn: kimi(turn, after_open(turn)),
    Family.GLM45: lambda turn: glm(turn, f"\n<think>{turn.reasoning}</think>", "\n"),
    Family.GLM47: lambda turn: glm(turn, after_open(turn), ""),
    Family.GLM53: lambda turn: glm(turn, after_open(turn), ""),
    Family.GLM53_FLASH: lambda turn: glm(turn, after_open(turn), ""),
}
"""What a model of the family generates, its stop token last."""


def parsed(session: Session, prompt: list[int], output: list[int]) -> Message:
    """What a client makes of the events of an output, its stop token included."""
    model, format = session.model, format_of(session.family)
    made = sum(len(message.tool_calls) for message in session.request.messages)
    start = model.prompt_state(prompt)
    parser = OutputParser(format, tools=TOOLS, start=start, history_tool_calls=made, control_known=True)
    pieces = PieceReader(model.detokenizer(), control_pieces(model.vocabulary, format))
    events = [event for index in output for event in parser.push(pieces.push([index]))]
    events += parser.push(pieces.finish())
    events += parser.finish("stop")[0]
    calls: list[ToolCall] = []
    for event in events:
        match event:
            case ToolCallStart(id=id, name=name):
                calls.append(ToolCall(id=id, name=name, arguments=""))
            case ToolCallDelta(call=place, arguments=more):
                calls[place] = msgspec.structs.replace(calls[place], arguments=calls[place].arguments + more)
            case _:
                pass
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    return Message(role="assistant", reasoning=reasoning or None, content=content or None, tool_calls=tuple(calls))


class Session:
    """A conversation in progress. `whole` are the ids of the last prompt and its output."""

    def __init__(self, family: Family, **template_args: Any) -> None:
        self.family, self.model = family, text_model(family)
        self.request = msgspec.structs.replace(START, template_args=template_args)
        self.whole: list[int] = []

    def answers(self, turn: Message, rename: Callable[[str], str] = str) -> Message:
        """The model generates `turn`; its ids are parsed, and a client sends back what came of them."""
        prompt = self.model.render(self.request)
        output = self.model.encode(WRITES[self.family](turn))
        self.whole = prompt + output
        read = parsed(self, prompt, output)
        assert (read.content or "").strip() == (turn.content or "").strip()
        assert [(call.name, json.loads(call.arguments)) for call in read.tool_calls] == [
            (call.name, json.loads(call.arguments)) for call in turn.tool_calls
        ]
        calls = tuple(msgspec.structs.replace(call, id=rename(call.id)) for call in read.tool_calls)
        sent = msgspec.structs.replace(read, tool_calls=calls)
        self.say(sent)
        return sent

    def say(self, *messages: Message) -> None:
        self.request = msgspec.structs.replace(self.request, messages=(*self.request.messages, *messages))

    def loop(self, rename: Callable[[str], str] = str) -> None:
        """All rounds with their results, each of which must leave what was before as it was."""
        made = 0
        for reasoning, content, calls in ROUNDS:
            sent = self.answers(answer(made, reasoning, content, calls), rename)
            made += len(calls)
            self.say(
                *(Message(role="tool", tool_call_id=call.id, content=f"ok {call.id}\n") for call in sent.tool_calls)
            )
            assert self.lost() == 0

    def lost(self) -> int:
        """How many tokens of the last prompt and output the next prompt does not begin with."""
        pairs = zip(self.whole, self.model.render(self.request), strict=False)
        return len(self.whole) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def after_first(self, token: str) -> int:
        """How many ids follow the first place of a control token."""
        (index,) = self.model.encode(token)
        return len(self.whole) - self.whole.index(index) - 1


@pytest.mark.parametrize("family", BUILT_IN)
def test_nothing_is_lost_in_a_tool_loop(family: Family) -> None:
    Session(family).loop()


@pytest.mark.parametrize("family", BUILT_IN)
def test_nothing_is_lost_where_a_client_renames_the_calls(family: Family) -> None:
    Session(family).loop(rename=lambda id: f"toolu_{id.rpartition(':')[2]}")


CLEARS = {Family.KIMI_K2_THINKING, Family.KIMI_K25, Family.GLM45}
"""Makers' rule: reasoning goes once there is a final answer after it (Kimi) or the user speaks again (GLM-4.5)."""


@pytest.mark.parametrize("family", BUILT_IN)
def test_after_a_final_answer_what_a_maker_clears_is_lost(
    family: Family, record_property: Callable[[str, object], None]
) -> None:
    session = Session(family)
    session.loop()
    session.answers(answer(0, "Say so.", "All mended.", []))
    session.say(Message(role="user", content="Thanks. And c.py?"))
    record_property("lost_tokens", session.lost())
    assert session.lost() == (session.after_first("<think>") if family in CLEARS else 0)


@pytest.mark.parametrize(
    ("family", "switch"),
    [
        (Family.KIMI_K26_PRESERVE, {"preserve_thinking": False}),
        (Family.GLM47, {"clear_thinking": True}),
        (Family.GLM53, {"clear_thinking": True}),
    ],
)
def test_a_client_may_have_it_cleared_and_pays_for_it(family: Family, switch: dict[str, bool]) -> None:
    session = Session(family, **switch)
    session.loop()
    session.answers(answer(0, "Say so.", "All mended.", []))
    session.say(Message(role="user", content="Thanks. And c.py?"))
    lost = session.lost()
    # GLM-4.7 has no <think> any more where nothing is left to enclose
    assert lost == session.after_first("<think>") + (family is Family.GLM47)


def test_glm47_loses_an_answer_without_reasoning() -> None:
    """Maker's rule: the prompt opens `<think>`, but an answer without reasoning is written back as `</think>` alone."""
    session = Session(Family.GLM47)
    turn = answer(0, None, "At once.", [("ls", {})])
    (call,) = session.answers(turn).tool_calls
    session.say(Message(role="tool", tool_call_id=call.id, content="a.py"))
    assert session.lost() == 1 + len(session.model.encode(WRITES[Family.GLM47](turn)))


@pytest.mark.parametrize("family", BUILT_IN)
def test_white_space_at_the_ends_is_lost_where_a_maker_trims(family: Family) -> None:
    """Maker's rule: GLM trims content, and up to 4.7 reasoning too; Kimi writes back what it is given."""
    session = Session(family)
    (made,) = session.answers(answer(0, "\nHm. ", "Let me see.\n", [("ls", {})])).tool_calls
    session.say(Message(role="tool", tool_call_id=made.id, content="a.py"))
    if family.startswith("kimi_"):
        assert session.lost() == 0
    elif family in (Family.GLM53, Family.GLM53_FLASH):
        (call,) = session.model.encode("<tool_call>")
        assert session.lost() == len(session.whole) - session.whole.index(call, -20) + 1
    else:
        assert session.lost() == session.after_first("<think>")


@pytest.mark.parametrize("family", BUILT_IN)
def test_the_next_user_message_after_each_answer_finds_the_last_one_again(family: Family) -> None:
    """A plain talk: each family keeps at least all before the last answer's reasoning."""
    session = Session(family)
    for turn in range(3):
        session.answers(answer(0, f"Thought {turn}.", f"Answer {turn}.", []))
        session.say(Message(role="user", content=f"Question {turn}?"))
        output = len(session.model.encode(WRITES[family](answer(0, f"Thought {turn}.", f"Answer {turn}.", []))))
        assert session.lost() <= output
