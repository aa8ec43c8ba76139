from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import needs_shared
from text_models import kimi_vocabulary

from stoker.models.text.memo import LONG, PER_TEXT, Memo
from stoker.models.text.model import TextModel
from stoker.types.chat import ChatRequest, Message


class Encoder:
    """A token a byte; notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[int]]:
        self.asked += texts
        return [[*text.encode()] for text in texts]


def long(text: str) -> str:
    return text * LONG


TEXTS = st.sampled_from(["", "a", "short", *map(long, "abcdé")])


@given(st.lists(st.tuples(st.sampled_from("xy"), st.lists(TEXTS, max_size=5)), max_size=20), st.integers(0, 12_000))
def test_the_ids_are_those_of_each_text_by_itself_and_memory_is_bounded(
    turns: list[tuple[str, list[str]]], limit: int
) -> None:
    memo = Memo(limit)
    for owner, texts in turns:
        assert [[*ids] for ids in memo.encode(owner, texts, Encoder())] == [[*text.encode()] for text in texts]
        assert memo.size <= limit


def test_only_what_is_new_is_encoded() -> None:
    memo, encoder = Memo(), Encoder()
    history = [long("system"), "hi", long("answer")]
    memo.encode("x", history, encoder)
    encoder.asked.clear()
    memo.encode("x", [*history, long("tool")], encoder)
    assert encoder.asked == ["hi", long("tool")]


def test_owners_find_nothing_of_each_other() -> None:
    memo, encoder = Memo(), Encoder()
    for owner, text in (("x", "y" + long("a")), ("xy", long("a")), ("", "xy" + long("a"))):
        memo.encode(owner, [text], encoder)
    assert len(encoder.asked) == 3


def test_the_longest_unused_goes_first() -> None:
    memo, encoder = Memo(2 * (PER_TEXT + 4 * LONG)), Encoder()
    for text in "ababcab":
        memo.encode("x", [long(text)], encoder)
    assert encoder.asked == [*map(long, "abcab")]


def conversation(*contents: str) -> ChatRequest:
    roles = ("user", "assistant")
    return ChatRequest(
        model="m",
        messages=tuple(Message(role=roles[place % 2], content=content) for place, content in enumerate(contents)),
    )


CONTENTS = ["<|im_end|>" + "é😀 x\n" * 60, "the <|im_start|>user " * 40, "  lead" * 50, "ab" * 200]


@pytest.mark.parametrize("model", ["demo_text", "tiny_text"])
def test_prompts_are_the_same_with_a_memory(model: str, request: pytest.FixtureRequest) -> None:
    text: TextModel = request.getfixturevalue(model)
    turns = [conversation(*CONTENTS[:count]) for count in range(1, len(CONTENTS) + 1)]
    alone = [text.render(turn) for turn in turns]
    assert [text.render(turn, owner="x") for turn in turns * 2] == alone * 2
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(partial(text.render, owner="y"), turns * 4)] == alone * 4


@needs_shared
def test_the_cuts_of_very_long_texts_stay() -> None:
    vocabulary = kimi_vocabulary()
    end, memo = min(vocabulary.special), Memo()
    turns: list[list[str | int]] = [
        ["word " * 30_000, end, "x" * 30_000, end, "word " * 60_000][:count] for count in (1, 3, 5)
    ]
    for parts in turns:
        remembered = vocabulary.encode_parts(parts, partial(memo.encode, "x"))
        assert remembered == vocabulary.encode_parts(parts)
