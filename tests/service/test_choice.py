from __future__ import annotations

from itertools import pairwise

import pytest
from front_fakes import EOS, FakeText
from hypothesis import given
from hypothesis import strategies as st

from stoker.service.choice import Choice, PlainParser
from stoker.service.pieces import PieceReader
from stoker.types.chat import ChoiceDone, TextDelta
from stoker.types.errors import StokerError
from stoker.types.wire import Progress, SampledToken

TEXT = FakeText()


def choice(stops=(), *, logprobs=False) -> Choice:
    return Choice(0, PieceReader(TEXT.detokenizer(), {}), PlainParser(0), TEXT.token_bytes, stops, logprobs=logprobs)


def steps(tokens: list[int], borders: list[int], finish: str) -> list[Progress]:
    edges = [0, *sorted({border % (len(tokens) + 1) for border in borders}), len(tokens)]
    parts = [tokens[a:b] for a, b in pairwise(edges)]
    return [
        Progress(
            id="x",
            tokens=[SampledToken(id=token, logprob=-1.0) for token in part],
            output=sum(map(len, parts[: number + 1])),
            finish=finish if number + 1 == len(parts) else None,
        )
        for number, part in enumerate(parts)
    ]


def play(made: Choice, progress: list[Progress]) -> tuple[str, list[int], str | None]:
    text, ids, reason = "", [], None
    for item in progress:
        for event in made.push(item):
            match event:
                case TextDelta():
                    assert event.text or event.logprobs
                    text += event.text
                    ids += [token.id for token in event.logprobs]
                case ChoiceDone():
                    reason = event.reason
        if made.done:
            break
    return text, ids, reason


@given(st.text("aé✓😀", max_size=12), st.lists(st.integers(0, 60), max_size=12), st.booleans())
def test_any_cut_into_steps_gives_the_same_text(text, borders, logprobs):
    tokens = list(text.encode())
    got, ids, reason = play(choice(logprobs=logprobs), steps(tokens, borders, "length"))
    assert (got, reason) == (text, "length")
    assert ids == (tokens if logprobs else [])


@given(st.text("aé✓", max_size=12), st.lists(st.integers(0, 60), max_size=12), st.text("aé✓", min_size=1, max_size=3))
def test_stop_and_logprobs_agree(text, borders, stop):
    got, ids, reason = play(choice([stop], logprobs=True), steps(list(text.encode()), borders, "length"))
    before, found, _ = text.partition(stop)
    assert got == before
    assert reason == ("stop" if found else "length")
    assert bytes(ids).decode() == before


def test_nothing_of_a_stop_string_is_sent_early():
    made = choice(["STOP"])
    assert made.push(Progress(id="x", tokens=[SampledToken(id=b) for b in b"go ST"])) == [
        TextDelta(index=0, text="go ")
    ]
    assert made.push(Progress(id="x", tokens=[SampledToken(id=b) for b in b"OP and more"])) == [
        ChoiceDone(index=0, reason="stop", stop="STOP")
    ]


def test_half_a_character_at_the_end_is_shown_as_broken():
    text, ids, _ = play(choice(logprobs=True), steps([0xE2, 0x9C], [], "length"))
    assert (text, ids) == ("�", [0xE2, 0x9C])


def test_special_tokens_have_logprobs_but_no_text():
    text, ids, _ = play(choice(logprobs=True), steps([97, EOS], [1], "stop"))
    assert (text, ids) == ("a", [97, EOS])


def test_counts_only_grow():
    made = choice()
    made.push(Progress(id="x", cached=64, output=3, waited=2))
    made.push(Progress(id="x", output=5))
    assert (made.cached, made.output, made.waited) == (64, 5, 2)


@pytest.mark.parametrize(("finish", "code"), [("error", "generation_failed"), ("abort", "engine_stopped")])
def test_engine_failures_are_errors(finish, code):
    with pytest.raises(StokerError) as failure:
        choice().push(Progress(id="x", finish=finish))
    assert failure.value.code == code
