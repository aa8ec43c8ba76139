"""Clients' grammars in processes of their own: hostile ones end there, and nobody else notices."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from stoker.models.source import ModelFiles
from stoker.models.text.grammar import grammars
from stoker.models.text.guidance import control_marks
from stoker.models.text.model import TextModel
from stoker.service import grammar_trial
from stoker.service.grammar_trial import GrammarTrial
from stoker.types.chat import ChatRequest, GrammarOutput, RegexOutput, ResponseFormat, SchemaOutput, Tool, ToolChoice
from stoker.types.errors import ErrorKind, StokerError

GOOD = 'start: "yes" | "no"'
FAKE = """
import sys, time
sys.stdin.readline()
print('"ready"', flush=True)
for line in sys.stdin:
    if "hang" in line:
        time.sleep(60)
    if "die" in line:
        break
    print(0 if "good" in line else '"it is bad"', flush=True)
"""


@pytest.fixture
async def trial(demo_files: ModelFiles) -> AsyncGenerator[GrammarTrial]:
    made = GrammarTrial(demo_files)
    yield made
    await made.close()


@pytest.fixture
async def fake(demo_files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[GrammarTrial]:
    """With a worker that does what a grammar says."""
    monkeypatch.setattr(grammar_trial, "SECONDS", 0.3)
    made = GrammarTrial(demo_files, command=(sys.executable, "-c", FAKE))
    yield made
    await made.close()


def processes(trial: GrammarTrial) -> list[int]:
    running = [worker._process for worker in trial._workers]  # pyright: ignore[reportPrivateUsage]
    return [process.pid for process in running if process is not None and process.returncode is None]


async def reason(trial: GrammarTrial, *texts: str) -> str:
    with pytest.raises(StokerError) as refused:
        await trial.check(texts)
    assert refused.value.kind is ErrorKind.INVALID
    assert refused.value.code == "invalid_grammar"
    return refused.value.message


async def test_the_first_grammar_that_can_be_used(trial: GrammarTrial) -> None:
    assert not processes(trial), "nothing runs before there is something to try"
    assert await trial.check((GOOD,)) == GOOD
    assert await trial.check(("start: (", GOOD)) == GOOD
    assert "never" not in await reason(trial, "start: (")
    assert "no text is allowed" in await reason(trial, "start: a\na: a")
    assert len(processes(trial)) == 1


async def test_what_is_known_is_not_tried_again(fake: GrammarTrial) -> None:
    await fake.check(("good",))
    await reason(fake, "bad")
    await fake.close()
    assert await fake.check(("good",)) == "good"
    assert "it is bad" in await reason(fake, "bad")
    assert not processes(fake)


async def test_a_worker_that_hangs_or_dies_is_replaced(fake: GrammarTrial) -> None:
    assert "too complex" in await reason(fake, "hang")
    assert not processes(fake)
    assert await fake.check(("good 1",)) == "good 1"
    assert "within bounds" in await reason(fake, "die")
    assert await fake.check(("good 2",)) == "good 2"


async def test_a_client_that_leaves_takes_its_worker_with_it(fake: GrammarTrial) -> None:
    """Or the next would get its answer."""
    await fake.check(("good 1",))
    task = asyncio.create_task(fake.check(("hang",)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "it is bad" in await reason(fake, "bad")
    assert await fake.check(("good 2",)) == "good 2"


async def test_only_so_many_wait(fake: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "WAITING", 3)
    tasks = [asyncio.create_task(fake.check((f"hang {i}",))) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(StokerError) as refused:
        await fake.check(("good",))
    assert refused.value.kind is ErrorKind.CAPACITY
    assert refused.value.retry_after is not None
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await fake.check(("good",)) == "good"


async def test_a_worker_that_cannot_start_is_our_fault(demo_files: ModelFiles) -> None:
    made = GrammarTrial(demo_files, command=(sys.executable, "-c", ""))
    for _ in range(2):
        with pytest.raises(StokerError) as refused:
            await made.check((GOOD,))
        assert refused.value.kind is ErrorKind.INTERNAL
    await made.close()


def bomb(levels: int, word: str) -> dict[str, Any]:
    defs = {f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "string"}}}


HOSTILE: dict[str, ResponseFormat] = {
    "only itself": SchemaOutput(schema={"anyOf": [{"allOf": [{"$ref": "#"}]}]}),
    "options for all": SchemaOutput(
        schema={"allOf": [{"anyOf": [{"properties": {f"a{i}_{j}": {}}} for j in range(6)]} for i in range(20)]}
    ),
    "optional": SchemaOutput(
        schema={"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1900)}}
    ),
    "big numbers": SchemaOutput(schema={"type": "integer", "minimum": -(10**300), "maximum": 10**300}),
    "patterns": SchemaOutput(
        schema={"allOf": [{"type": "string", "pattern": f"^(.*a.{{{i}}}b.*){{9}}$"} for i in range(30, 60)]}
    ),
    "counted twice": RegexOutput(pattern="((a?){1000}){1000}"),
    "counted often": RegexOutput(pattern="(((a|b|ab){1,99}c?){1,99}d?){1,99}"),
    "all but": GrammarOutput(grammar="start: A\nA: ~(/(.*a.{15}b.*){5}/) & /(.*c.{15}d.*){5}/"),
    "repeated": GrammarOutput(grammar='start: b{1000}\nb: c{1000}\nc: d{1000}\nd: "a"{1000}'),
    "nested": GrammarOutput(grammar="start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "many ways": GrammarOutput(grammar='start: "k" a\na: b b b b | "c"\nb: a a |'),
    "never ends": GrammarOutput(grammar='start: a\na: "x" a'),
}


HARMLESS = ("counted twice", "many ways")  # cheap at each step, and a request that gets stuck in one fails alone


@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - set(HARMLESS)))
async def test_hostile_grammars_are_refused_soon(trial: GrammarTrial, demo_text: TextModel, name: str) -> None:
    request = ChatRequest(model="m", messages=(), response_format=HOSTILE[name])
    found = grammars(request, "hermes", control_marks(demo_text))
    await trial.check((GOOD,))
    began = time.monotonic()
    await reason(trial, *found)
    assert time.monotonic() - began < 5.0
    assert await trial.check((GOOD,)) == GOOD


@pytest.mark.parametrize("name", HARMLESS)
async def test_what_only_looks_hostile_is_let_in(trial: GrammarTrial, demo_text: TextModel, name: str) -> None:
    request = ChatRequest(model="m", messages=(), response_format=HOSTILE[name])
    await trial.check(grammars(request, "hermes", control_marks(demo_text)))


@pytest.mark.parametrize("word", ["anyOf", "allOf", "oneOf"])
async def test_references_that_double_at_each_level_are_one_each(
    trial: GrammarTrial, demo_text: TextModel, word: str
) -> None:
    parts = bomb(30, word)
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": parts["$ref"]}},
        "required": ["a"],
        "$defs": parts["$defs"],
    }
    tool = Tool(name="f", parameters=schema)
    request = ChatRequest(model="m", messages=(), tools=(tool,), tool_choice=ToolChoice(mode="required"))
    began = time.monotonic()
    await trial.check(grammars(request, "hermes", control_marks(demo_text)))
    assert time.monotonic() - began < 5.0
