"""What a request asks of its answer, as the engine gets it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from front_fakes import FakeBackend, say

from stoker.models.info import read_info
from stoker.models.source import ModelFiles
from stoker.models.text.model import TextModel
from stoker.service.constraints import FREE, Constraints
from stoker.service.grammar_trial import GrammarTrial
from stoker.service.pipeline import Service
from stoker.types.chat import ChatRequest, JsonOutput, Message, Tool, ToolChoice
from stoker.types.errors import StokerError
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate

TOOL = Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.fixture
async def trial(tiny_llama: ModelFiles) -> AsyncGenerator[GrammarTrial]:
    made = GrammarTrial(tiny_llama)
    yield made
    await made.close()


def ask(**fields: object) -> ChatRequest:
    given = {"model": "tiny-llama", "messages": (Message(role="user", content="Hi."),), **fields}
    return ChatRequest(**given)  # pyright: ignore[reportArgumentType]


async def test_what_asks_for_nothing_gets_nothing(tiny_text: TextModel, trial: GrammarTrial) -> None:
    constraints = Constraints(tiny_text, trial)
    for request in (
        ask(),
        ask(tools=(TOOL,), tool_choice=ToolChoice(mode="none")),
        ask(tools=(TOOL,), constrain_tools=False),
    ):
        assert await constraints.settle(constraints.draft(request, [1])) == FREE


async def test_reasoning_and_grammar_reach_the_engine(tiny_text: TextModel, trial: GrammarTrial) -> None:
    constraints = Constraints(tiny_text, trial)
    prompt = tiny_text.encode("Hi.<think>\n")
    request = ask(tools=(TOOL,), tool_choice=ToolChoice(mode="required"), reasoning_budget=7)
    found = await constraints.settle(constraints.draft(request, prompt))
    assert found.grammar is not None
    assert found.reasoning is not None
    assert found.reasoning.start == "reasoning"
    assert found.reasoning.calls
    assert found.reasoning.budget == 7
    assert list(found.reasoning.end) == tiny_text.encode("</think>")
    closed = await constraints.settle(constraints.draft(request, tiny_text.encode("Hi.<think></think>")))
    assert closed.grammar == found.grammar
    assert closed.reasoning is None


def test_without_a_trial_only_what_is_insisted_on_is_refused(tiny_text: TextModel) -> None:
    constraints = Constraints(tiny_text, None)
    assert constraints.draft(ask(tools=(TOOL,)), [1]) == ((), None)
    for request in (
        ask(response_format=JsonOutput()),
        ask(tools=(TOOL,), tool_choice=ToolChoice(mode="required")),
    ):
        with pytest.raises(StokerError, match="not supported here"):
            constraints.draft(request, [1])


async def test_every_choice_has_it_and_no_wish_for_length_is_in_its_way(
    tiny_llama: ModelFiles, tiny_text: TextModel, trial: GrammarTrial
) -> None:
    seen: list[Generate] = []

    def script(request: Generate) -> list[object]:
        seen.append(request)
        return say("{}")  # pyright: ignore[reportReturnType]

    backend = FakeBackend(script)  # pyright: ignore[reportArgumentType]
    service = Service(tiny_text, read_info(tiny_llama), backend, trial=trial)
    sampling = SamplingParams(min_tokens=5, ignore_eos=True)
    request = ask(n=2, response_format=JsonOutput(), sampling=sampling)
    generation = await service.start(request, tenant="t", request_id="r")
    async for _ in generation.events():
        pass
    assert len(seen) == 2
    for generate in seen:
        assert generate.grammar is not None
        assert generate.sampling.min_tokens == 0
        assert not generate.sampling.ignore_eos
    service.close()
