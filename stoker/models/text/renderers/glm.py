"""GLM-4.5 to GLM-5.3 prompts. One form whose members differ in the values at the end: line breaks between its parts,
which reasoning stays in the history, how tools are declared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.models.text.fixed import Fixed, to_json
from stoker.models.text.turns import Call, Conversation, Media, Turn
from stoker.types.errors import invalid

START = Fixed("[gMASK]<sop>")
SYSTEM, USER, ASSISTANT = Fixed("<|system|>"), Fixed("<|user|>"), Fixed("<|assistant|>")
OBSERVATION, RESULT, RESULT_END = Fixed("<|observation|>"), Fixed("<tool_response>"), Fixed("</tool_response>")
THINK, THOUGHT = Fixed("<think>"), Fixed("</think>")
CALL, CALL_END = Fixed("<tool_call>"), Fixed("</tool_call>")
KEY, KEY_END, VALUE, VALUE_END = Fixed("<arg_key>"), Fixed("</arg_key>"), Fixed("<arg_value>"), Fixed("</arg_value>")
NO_THINK = Fixed("/nothink")
TOOLS = Fixed("""
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
""")
TOOLS_END = """</tools>

For each function call, output the function name and arguments within the following XML format:
"""
FORM = (
    "<tool_call>{function-name}",
    "<arg_key>{arg-key-1}</arg_key>",
    "<arg_value>{arg-value-1}</arg_value>",
    "<arg_key>{arg-key-2}</arg_key>",
    "<arg_value>{arg-value-2}</arg_value>",
    "...",
    "</tool_call>",
)


@dataclass(frozen=True)
class Glm:
    """`line` stands between the parts of a turn. `unthought` is what an answer without reasoning begins with, and
    `clears` whether that is all answers before the last user message have; `clearable`: `clear_thinking` decides.
    `verbatim`: reasoning keeps the white space at its ends. `thinking`, `silent`: how the prompt opens an answer with
    and without reasoning; None: this model always reasons. `nudge`: user messages say so too where it must not.
    `effort`: the prompt says how much to reason. `bare`: tools are declared as functions, those to be loaded later not
    at all, and results come in the order of their calls."""

    line: Fixed
    unthought: tuple[Fixed, ...]
    clears: bool
    thinking: tuple[Fixed, ...]
    silent: tuple[Fixed, ...] | None
    clearable: bool = True
    verbatim: bool = False
    nudge: bool = False
    effort: bool = False
    bare: bool = False
    media: Mapping[Media, Fixed] = field(default_factory=dict)

    def render(self, conversation: Conversation) -> Iterator[str]:
        silent = None if conversation.switch("enable_thinking", "thinking", default=True) else self.silent
        yield START
        if self.effort:
            named = conversation.options.get("reasoning_effort")
            yield from (SYSTEM, f"Reasoning Effort: {named.title() if named in ('low', 'high') else 'Max'}")
        if tools := self._declarations(conversation.tools):
            yield from (SYSTEM, TOOLS, tools, Fixed(TOOLS_END + self.line.join(FORM)))
        turns = _in_call_order(conversation.turns) if self.bare else conversation.turns
        clear = conversation.switch("clear_thinking", default=self.clears) if self.clearable else self.clears
        kept = _last_user(turns) if clear else -1
        for place, turn in enumerate(turns):
            match turn.role:
                case "user":
                    yield from (USER, self.line, *self._content(turn))
                    if self.nudge and silent and not turn.text.endswith(NO_THINK):
                        yield NO_THINK
                case "assistant":
                    yield from self._answer(turn, keep=place > kept)
                case "tool":
                    if not place or turns[place - 1].role != "tool":
                        yield OBSERVATION
                    yield from (self.line, RESULT, self.line, *self._content(turn), self.line, RESULT_END)
                case _:
                    yield from (SYSTEM, self.line, *self._content(turn))
        if conversation.switch("add_generation_prompt", default=False):
            yield from (ASSISTANT, *(silent or self.thinking))

    def _declarations(self, tools: Sequence[dict[str, Any]]) -> str:
        if self.bare:
            functions = [tool.get("function", tool) for tool in tools]
            tools = [
                {key: value for key, value in function.items() if key not in ("strict", "defer_loading")}
                for function in functions
                if not function.get("defer_loading")
            ]
        return "".join(f"{to_json(tool)}\n" for tool in tools)

    def _answer(self, turn: Turn, *, keep: bool) -> Iterator[str]:
        reasoning, text = turn.reasoning, "".join(self._content(turn))
        if reasoning is None:
            reasoning, text = _split_inline(text)
        yield from (ASSISTANT, self.line)
        if keep and reasoning:
            yield from (THINK, reasoning if self.verbatim else reasoning.strip(), THOUGHT)
        else:
            yield from self.unthought
        if text := text.strip():
            yield from (self.line, text)
        for call in turn.calls:
            yield from (self.line, CALL, call.name, self.line)
            for key, value in _arguments(call).items():
                written = value if isinstance(value, str) else to_json(value)
                yield from (KEY, key, KEY_END, self.line, VALUE, written, VALUE_END, self.line)
            yield CALL_END

    def _content(self, turn: Turn) -> Iterator[str]:
        for part in turn.parts:
            if not isinstance(part, Media):
                yield part
            elif part in self.media:
                yield self.media[part]
            else:
                raise invalid("unsupported_content", f"this model reads no {part}", param="messages")


def _split_inline(text: str) -> tuple[str, str]:
    """Reasoning and the rest of an answer that a client sent back as one text."""
    if THOUGHT not in text:
        return "", text
    before, after = text.split(THOUGHT)[0], text.split(THOUGHT)[-1]
    return before.rstrip("\n").split(THINK)[-1].lstrip("\n"), after.lstrip("\n")


def _arguments(call: Call) -> dict[str, Any]:
    """Raises StokerError (INVALID) when they are not the JSON of an object: the form has no way to write others."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise invalid(
            "invalid_tool_arguments", f"the arguments of the call {call.id!r} are not a JSON object", param="messages"
        )
    return arguments


def _last_user(turns: Sequence[Turn]) -> int:
    return max((place for place, turn in enumerate(turns) if turn.role == "user"), default=-1)


def _in_call_order(turns: Sequence[Turn]) -> list[Turn]:
    """Each run of results in the order of the calls before it, where each has an id of its own that is known."""
    ordered: list[Turn] = []
    places: dict[str, int] = {}
    run: list[Turn] = []
    for turn in [*turns, None]:
        if turn is not None and turn.role == "tool":
            run.append(turn)
            continue
        ids = {result.call_id for result in run}
        known = len(ids) == len(run) and ids <= places.keys()
        ordered += sorted(run, key=lambda result: places[result.call_id]) if known else run
        run = []
        if turn is not None:
            places = {call.id: place for place, call in enumerate(turn.calls)}
            ordered.append(turn)
    return ordered


def _reminder(what: Media) -> Fixed:
    """What a model without eyes is told instead."""
    return Fixed(
        f"<reminder>You are unable to process this {what} because you don't have multi-modal input ability. "
        "Try different methods.</reminder>"
    )


def _markers(what: Media) -> Fixed:
    return Fixed(f"<|begin_of_{what}|><|{what}|><|end_of_{what}|>")


NO_LINE, LINE = Fixed(""), Fixed("\n")
GLM45 = Glm(
    line=LINE,
    unthought=(THINK, THOUGHT),
    clears=True,
    clearable=False,
    thinking=(),
    silent=(LINE, THINK, THOUGHT),
    nudge=True,
)
GLM47 = Glm(line=NO_LINE, unthought=(THOUGHT,), clears=True, thinking=(THINK,), silent=(THOUGHT,))
GLM53 = Glm(
    line=NO_LINE,
    unthought=(THINK, THOUGHT),
    clears=False,
    thinking=(THINK,),
    silent=None,
    verbatim=True,
    effort=True,
    bare=True,
    media={what: _reminder(what) for what in Media},
)
GLM53_FLASH = replace(GLM53, media={what: _markers(what) for what in Media})
