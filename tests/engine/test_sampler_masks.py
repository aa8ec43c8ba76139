"""A grammar's mask in the sampler: what it leaves is sampled as if nothing else had ever been there."""

from __future__ import annotations

import math
import random

import pytest
import torch

from stoker.engine.sampler import Allowed, SamplerRow, sample
from stoker.types.sampling import SamplingParams
from stoker.types.wire import SampledToken

PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.7, top_k=5),
    SamplingParams(seed=3, top_p=0.5),
    SamplingParams(seed=4, min_p=0.2, repetition_penalty=1.3, presence_penalty=0.4),
    SamplingParams(seed=5, logit_bias={1: 50.0, 3: -3.0}),
)


def words_of(sets: list[set[int]], vocab: int) -> torch.Tensor:
    words = [[0] * -(-vocab // 32) for _ in sets]
    for row, ids in enumerate(sets):
        for index in ids:
            words[row][index // 32] |= 1 << index % 32
    signed = [[word - (1 << 32) if word >> 31 else word for word in row] for row in words]
    return torch.tensor(signed, dtype=torch.int32)


@pytest.mark.parametrize("vocab", [31, 32, 33, 1000])
def test_a_mask_is_the_same_as_logits_without_the_rest(vocab: int) -> None:
    """Also beside rows without a mask, and whichever rows have one."""
    draw = random.Random(vocab)
    for _ in range(30):
        count = draw.randint(1, 8)
        logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))
        rows = [SamplerRow(draw.choice(PARAMS), [0, 1, 2, 3], 2) for _ in range(count)]
        masked = sorted(draw.sample(range(count), draw.randint(1, count)))
        sets = [set(draw.sample(range(vocab), draw.randint(1, vocab))) for _ in masked]
        plain = logits.clone()
        for row, ids in zip(masked, sets, strict=True):
            plain[row, [index for index in range(vocab) if index not in ids]] = -math.inf
        before = logits.clone()
        found = sample(logits, rows, Allowed(masked, words_of(sets, vocab)))
        assert torch.equal(logits, before), "the logits are not touched"
        for row in range(count):
            (alone,) = sample(plain[row : row + 1].nan_to_num(neginf=-1e30), [rows[row]])
            token = found[row]
            assert isinstance(token, SampledToken)
            assert isinstance(alone, SampledToken)
            assert token.id == alone.id
            if row in masked:
                assert token.id in sets[masked.index(row)]


def test_tokens_beyond_the_masks_words_may_not_come() -> None:
    logits = torch.zeros(1, 100)
    logits[0, 99] = 5.0
    allowed = Allowed([0], words_of([set(range(64))], 64))
    (token,) = sample(logits, [SamplerRow(SamplingParams(temperature=0), [0], 1)], allowed)
    assert token == SampledToken(0)


def test_a_mask_of_nothing_fails_its_row_alone() -> None:
    rows = [SamplerRow(SamplingParams(seed=1), [0], 1) for _ in range(2)]
    nothing, token = sample(torch.zeros(2, 40), rows, Allowed([0], words_of([set()], 40)))
    assert isinstance(nothing, str)
    assert isinstance(token, SampledToken)


def test_log_probabilities_are_those_of_the_model() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    row = SamplerRow(SamplingParams(seed=1, logprobs=2), [0], 1)
    (token,) = sample(logits, [row], Allowed([0], words_of([{7}], 50)))
    assert isinstance(token, SampledToken)
    assert token.id == 7
    assert token.logprob == pytest.approx(float(logits.log_softmax(-1)[0, 7]), abs=1e-5)
    assert {index for index, _ in token.top} == set(logits[0].topk(2).indices.tolist())
