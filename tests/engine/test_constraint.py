"""One sequence's constraint: reasoning, then its grammar, the same however it got where it is."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from stoker.engine.compiler import Grammars
from stoker.engine.grammar import Constraint
from stoker.models.text.guidance import Guide
from stoker.models.text.model import TextModel
from stoker.types.plan import SequenceStart
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Reasoning

OBJECT = (
    "start: /[ \\n]{0,2}/ j\nj: %json "
    '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}'
)
ANSWER = '{"a":"bc"}'


@pytest.fixture(scope="module")
def tiny(tiny_text: TextModel) -> Guide:
    return Guide(tiny_text)


@pytest.fixture(scope="module")
def demo(demo_text: TextModel) -> Guide:
    return Guide(demo_text)


def mask(constraint: Constraint) -> np.ndarray | None:
    """The ids that may come next; None if all may."""
    words = np.zeros(constraint.guide.words, np.int32)
    if not constraint.fill(words):
        return None
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def thinking(guide: Guide, start: str = "reasoning", *, calls: bool = False, budget: int | None = None) -> Reasoning:
    end = tuple(guide.text.encode("</think>"))
    return Reasoning(format="hermes", start=start, calls=calls, budget=budget, end=end)  # pyright: ignore


def test_only_tokens_that_the_grammar_takes_may_come_and_the_end_only_when_it_is_complete(tiny: Guide) -> None:
    constraint = Constraint(tiny, tiny.compile(OBJECT), None)
    eos = tiny.text.eos_ids
    for index in tiny.text.encode(ANSWER):
        allowed = mask(constraint)
        assert allowed is not None
        assert index in allowed
        assert eos.isdisjoint(allowed)
        constraint.accept([index])
    assert set(mask(constraint)) == eos  # pyright: ignore[reportArgumentType]
    constraint.accept([min(eos)])
    assert set(mask(constraint)) == eos, "whoever ignores the end gets it again"  # pyright: ignore[reportArgumentType]
    assert constraint.error is None


def test_an_id_that_the_grammar_does_not_take_fails_this_request(tiny: Guide) -> None:
    grammar = tiny.compile(OBJECT)
    constraint, other = Constraint(tiny, grammar, None), Constraint(tiny, grammar, None)
    constraint.accept(tiny.text.encode("[1"))
    assert constraint.error is not None
    assert mask(constraint) is not None
    assert other.error is None
    assert Constraint(tiny, grammar, None, tiny.text.encode(ANSWER)).error is None


@pytest.mark.parametrize("which", ["tiny", "demo"])
def test_the_grammar_waits_until_reasoning_is_over(which: str, request: pytest.FixtureRequest) -> None:
    """`</think>` is one token of the one vocabulary and ordinary text of the other."""
    guide: Guide = request.getfixturevalue(which)
    constraint = Constraint(guide, guide.compile(OBJECT), thinking(guide))
    for index in guide.text.encode("Let me see: [1] {}\nwell") + guide.text.encode("</think>"):
        allowed = mask(constraint)
        assert allowed is not None
        assert index in allowed
        assert guide.text.eos_ids.isdisjoint(allowed), "an end here would be an answer that is not complete"
        constraint.accept([index])
    for index in guide.text.encode(ANSWER):
        allowed = mask(constraint)
        assert allowed is not None
        assert index in allowed
        constraint.accept([index])
    assert set(mask(constraint)) == guide.text.eos_ids  # pyright: ignore[reportArgumentType]


def test_what_the_grammar_can_do_without_may_also_end_in_reasoning(tiny: Guide) -> None:
    constraint = Constraint(tiny, tiny.compile("start: /(?s:.*)/"), thinking(tiny))
    constraint.accept(tiny.text.encode("Hm"))
    allowed = mask(constraint)
    assert allowed is not None
    assert set(tiny.text.eos_ids) <= set(allowed)


def test_a_call_ends_reasoning_only_where_the_grammar_has_calls(tiny: Guide) -> None:
    call = tiny.control["<tool_call>"]
    calls = f'start: <[{call}]> "x"'
    constraint = Constraint(tiny, tiny.compile(calls), thinking(tiny, calls=True))
    constraint.accept(tiny.text.encode("So"))
    assert call in mask(constraint)  # pyright: ignore[reportOperatorIssue]
    constraint.accept([call])
    assert list(mask(constraint)) == tiny.text.encode("x")  # pyright: ignore[reportArgumentType]
    other = Constraint(tiny, tiny.compile(OBJECT), thinking(tiny, calls=True))
    other.accept(tiny.text.encode("So"))
    assert call not in mask(other)  # pyright: ignore[reportOperatorIssue]


def test_where_the_model_decides_it_may_think_or_answer(tiny: Guide) -> None:
    think = tiny.control["<think>"]
    constraint = Constraint(tiny, tiny.compile(OBJECT), thinking(tiny, "none"))
    allowed = mask(constraint)
    assert allowed is not None
    assert {think, *tiny.text.encode("{")[:1]} <= set(allowed)
    answers = Constraint(tiny, tiny.compile(OBJECT), thinking(tiny, "none"), tiny.text.encode(ANSWER))
    assert set(mask(answers)) == tiny.text.eos_ids  # pyright: ignore[reportArgumentType]
    constraint.accept([*tiny.text.encode("\n"), think, *tiny.text.encode("[{hm</think>\n"), *tiny.text.encode(ANSWER)])
    assert constraint.error is None
    assert set(mask(constraint)) == tiny.text.eos_ids  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("which", ["tiny", "demo"])
def test_a_budget_ends_reasoning_with_its_own_mark(which: str, budget: int, request: pytest.FixtureRequest) -> None:
    guide: Guide = request.getfixturevalue(which)
    end = guide.text.encode("</think>")
    for grammar in (guide.compile(OBJECT), None):
        constraint = Constraint(guide, grammar, thinking(guide, budget=budget))
        thought = guide.text.encode("a b c d e f g h i j k l m n o p q r s t")[:budget]
        for index in thought:
            assert mask(constraint) is None or len(mask(constraint)) > 1  # pyright: ignore[reportArgumentType]
            constraint.accept([index])
        for index in end:
            assert mask(constraint) == [index]
            constraint.accept([index])
        after = mask(constraint)
        assert after is None if grammar is None else set(guide.text.encode("{")) <= set(after)  # pyright: ignore


def test_reasoning_that_ends_by_itself_never_meets_its_budget(tiny: Guide) -> None:
    constraint = Constraint(tiny, None, thinking(tiny, budget=3))
    constraint.accept([*tiny.text.encode("a</think>"), *tiny.text.encode("one two three four five six")])
    assert mask(constraint) is None


@pytest.mark.parametrize("start", ["reasoning", "none", "content"])
def test_replay_and_rollback_are_the_straight_run(tiny: Guide, start: str) -> None:
    """Any way to the same ids gives the same mask: all at once after preemption, or with detours taken back."""
    draw = random.Random(start)
    grammar = tiny.compile(OBJECT)
    opening = "<think>" if start == "none" else ""
    ids = tiny.text.encode((f"{opening}hm [</think>\n" if start != "content" else "") + ANSWER)
    straight = Constraint(tiny, grammar, thinking(tiny, start, budget=50))
    masks = [mask(straight)]
    for index in ids:
        straight.accept([index])
        masks.append(mask(straight))
    wandering = Constraint(tiny, grammar, thinking(tiny, start, budget=50))
    at = 0
    for _ in range(100):
        to = draw.randrange(len(ids) + 1)
        if to >= at:
            wandering.accept(ids[at:to])
        else:
            wandering.rollback(at - to)
        at = to
        again = Constraint(tiny, grammar, thinking(tiny, start, budget=50), ids[:at])
        np.testing.assert_array_equal(mask(wandering), masks[at])
        np.testing.assert_array_equal(mask(again), masks[at])
        assert wandering.error is None


def test_a_draft_that_was_wrong_is_taken_back(tiny: Guide) -> None:
    constraint = Constraint(tiny, tiny.compile(OBJECT), None, tiny.text.encode('{"a"'))
    before = mask(constraint)
    wrong = tiny.text.encode(":[1")
    constraint.accept(wrong)
    assert constraint.error is not None
    constraint.rollback(len(wrong))
    assert constraint.error is None
    np.testing.assert_array_equal(mask(constraint), before)


def test_random_walks_end_in_json_of_the_schema(demo: Guide) -> None:
    draw = random.Random(4)
    for _ in range(20):
        constraint = Constraint(demo, demo.compile(OBJECT), None)
        ids: list[int] = []
        while True:
            allowed = mask(constraint)
            assert allowed is not None
            assert len(allowed)
            index = int(allowed[draw.randrange(len(allowed))])
            if index in demo.text.eos_ids:
                break
            ids.append(index)
            constraint.accept([index])
        value = json.loads(demo.text.decode(ids))
        assert len(value["a"]) <= 5


def test_the_tokenizer_is_loaded_for_grammars_only(tiny_text: TextModel) -> None:
    loaded: list[int] = []

    def load() -> TextModel:
        loaded.append(1)
        return tiny_text

    grammars = Grammars(load)
    plain = SequenceStart(seq=0, token_ids=[1, 2], prompt_len=1, sampling=SamplingParams(), blocks=[])
    assert grammars.constraint(plain) is None
    assert not loaded
    output = tiny_text.encode('{"a"')
    start = SequenceStart(
        seq=0, token_ids=[1, *output], prompt_len=1, sampling=SamplingParams(), blocks=[], grammar=OBJECT
    )
    constraint = grammars.constraint(start)
    assert constraint is not None
    assert tiny_text.encode(":")[0] in mask(constraint)  # pyright: ignore[reportOperatorIssue]
    assert grammars.compile(OBJECT) is grammars.compile(OBJECT)
    assert loaded == [1]


def test_a_grammar_that_does_not_compile_is_an_error_of_its_sequence(tiny_text: TextModel) -> None:
    start = SequenceStart(seq=0, token_ids=[1], prompt_len=1, sampling=SamplingParams(), blocks=[], grammar="start: (")
    constraint = Grammars(lambda: tiny_text).constraint(start)
    assert constraint is not None
    assert constraint.error
