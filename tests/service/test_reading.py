"""From the engine's tokens to events: formats, reasoning counts, stop strings, log-probabilities."""

from __future__ import annotations

from itertools import pairwise

import pytest
from front_fakes import EOS, FakeText, write
from hypothesis import given
from hypothesis import strategies as st

from stoker.models.text.parse.format import StartState
from stoker.service.reading import Reading
from stoker.types.chat import (
    ChatRequest,
    ChoiceDone,
    CompletionRequest,
    Message,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    ToolChoice,
)
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Progress, SampledToken

USER = Message(role="user", content="Hi")
READ = Tool(name="read", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
OUTPUTS = {
    "kimi_k25": "I see.</think>Reading."
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>"
    '{"path": "a"}<|tool_call_end|><|tool_calls_section_end|>',
    "glm47": "I see.</think>Reading.<tool_call>read<arg_key>path</arg_key><arg_value>a</arg_value></tool_call>",
    "hermes": 'I see.</think>Reading.<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>',
}


def chat(**more) -> ChatRequest:
    return ChatRequest(model="m", messages=(USER,), tools=(READ,), **more)


def play(family, request, ids, borders=(), *, finish="stop", state=StartState.REASONING):
    """(events, choice) of `ids` that come in steps with these borders."""
    choice = Reading(FakeText(family, state)).choice(request, 0, [1])
    edges = [0, *sorted({border % (len(ids) + 1) for border in borders}), len(ids)]
    steps = [ids[a:b] for a, b in pairwise(edges)]
    events = []
    for number, step in enumerate(steps):
        last = number + 1 == len(steps)
        tokens = [SampledToken(id=token, logprob=-1.0) for token in step]
        output = sum(map(len, steps[: number + 1])) + (last and finish == "stop")
        events += choice.push(Progress(id="x", tokens=tokens, output=output, finish=finish if last else None))
        if choice.done:
            break
    return events, choice


def join(events):
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    calls = [[event.name, "", event.id] for event in events if isinstance(event, ToolCallStart)]
    for event in events:
        if isinstance(event, ToolCallDelta):
            calls[event.call][1] += event.arguments
    done = [event.call for event in events if isinstance(event, ToolCallDone) and event.complete]
    return reasoning, text, [calls[call] for call in done], events[-1]


def logprobs(events) -> list[int]:
    kinds = TextDelta | ReasoningDelta
    return [token.id for event in events if isinstance(event, kinds) for token in event.logprobs]


@pytest.mark.parametrize("family", OUTPUTS)
@given(borders=st.lists(st.integers(0, 200), max_size=12))
def test_every_format_however_the_engine_cuts_it(family, borders):
    ids = write(OUTPUTS[family])
    events, choice = play(family, chat(), ids, borders)
    reasoning, text, calls, last = join(events)
    assert (reasoning, text) == ("I see.", "Reading.")
    assert [(name, arguments.replace(" ", "")) for name, arguments, _ in calls] == [("read", '{"path":"a"}')]
    assert last == ChoiceDone(index=0, reason="tool_calls")
    assert choice.reasoning == len("I see.") + 1  # its end is part of it
    assert choice.output == len(ids) + 1


def test_ids_go_on_counting_the_conversations_calls():
    call = ToolCall(id="functions.read:0", name="read", arguments="{}")
    earlier = (
        Message(role="assistant", tool_calls=(call, call)),
        Message(role="tool", content="x", tool_call_id="functions.read:0"),
    )
    output = OUTPUTS["kimi_k25"].replace("functions.read:0", "read")
    events, _ = play("kimi_k25", ChatRequest(model="m", messages=(USER, *earlier), tools=(READ,)), write(output))
    assert [event.id for event in events if isinstance(event, ToolCallStart)] == ["functions.read:2"]


@pytest.mark.parametrize("family", OUTPUTS)
def test_no_calls_without_tools_or_against_the_clients_wish(family):
    for request in (ChatRequest(model="m", messages=(USER,)), chat(tool_choice=ToolChoice(mode="none"))):
        events, _ = play(family, request, write(OUTPUTS[family]))
        assert not any(isinstance(event, ToolCallStart) for event in events)
        assert events[-1].reason == "stop"


def test_raw_completions_are_not_taken_apart():
    events, choice = play("kimi_k25", CompletionRequest(model="m", prompts=("x",)), write(OUTPUTS["kimi_k25"]))
    assert join(events)[:2] == ("", OUTPUTS["kimi_k25"])
    assert choice.reasoning == 0


def test_a_model_that_does_not_think_first():
    events, choice = play("hermes", chat(), write("<think>hm</think>Yes."), state=StartState.NONE)
    assert join(events)[:2] == ("hm", "Yes.")
    assert choice.reasoning == len("hm") + 2
    events, choice = play("hermes", chat(), write("Yes."), state=StartState.CONTENT)
    assert (join(events)[1], choice.reasoning) == ("Yes.", 0)


@given(borders=st.lists(st.integers(0, 200), max_size=12), stop=st.sampled_from(["ding", "see", "Reading.", ".", "xx"]))
def test_stop_strings_are_looked_for_in_the_text_only(borders, stop):
    events, choice = play("glm47", chat(stop=(stop,)), write(OUTPUTS["glm47"]), borders)
    reasoning, text, calls, last = join(events)
    before, found, _ = "Reading.".partition(stop)
    assert (reasoning, text) == ("I see.", before)
    assert choice.done
    if found:
        assert calls == []
        assert last == ChoiceDone(index=0, reason="stop", stop=stop)
    else:
        assert last == ChoiceDone(index=0, reason="tool_calls")


def test_a_stop_string_does_not_span_a_call():
    output = 'ST<tool_call>{"name": "read", "arguments": {}}</tool_call>OP and STOP.'
    events, _ = play("hermes", chat(stop=("STOP",)), write(output), state=StartState.CONTENT)
    _, text, calls, last = join(events)
    assert (text, len(calls)) == ("STOP and ", 1)
    assert last == ChoiceDone(index=0, reason="tool_calls", stop="STOP")


@pytest.mark.parametrize("cut", range(1, len(write(OUTPUTS["kimi_k25"]))))
def test_what_is_cut_off_inside_of_a_call_is_no_call(cut):
    ids = write(OUTPUTS["kimi_k25"])[:cut]
    events, _ = play("kimi_k25", chat(), ids, finish="length")
    assert events[-1].reason == "length"
    done = [event for event in events if isinstance(event, ToolCallDone)]
    assert len(done) == sum(isinstance(event, ToolCallStart) for event in events)
    for mark in ("<|", "|>"):
        assert mark not in "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize("family", OUTPUTS)
@given(borders=st.lists(st.integers(0, 200), max_size=12))
def test_every_token_has_its_log_probability_once(family, borders):
    ids = write(OUTPUTS[family])
    request = chat(sampling=SamplingParams(logprobs=0))
    events, _ = play(family, request, ids, borders)
    assert logprobs(events) == ids
    text = [event for event in events if isinstance(event, TextDelta) and event.text]
    first = next(place for place, event in enumerate(events) if event is text[0])
    assert logprobs(events[:first]) == ids[: len(logprobs(events[:first]))]


def test_log_probabilities_end_where_a_stop_string_cuts():
    request = chat(sampling=SamplingParams(logprobs=0), stop=("</stop>",))
    events, _ = play("hermes", request, write("hm</think>abc</stop>d"))
    assert join(events)[1] == "abc"
    assert logprobs(events) == write("hm</think>abc")


def test_the_end_token_is_never_text():
    events, _ = play("plain", ChatRequest(model="m", messages=(USER,)), [97, EOS], finish="length")
    assert join(events)[1] == "a"
