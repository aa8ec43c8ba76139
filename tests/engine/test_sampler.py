"""The sampler against an independent, slow reference: one row, float64, plain Python."""

from __future__ import annotations

import math
from collections import Counter
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.sampler import SamplerRow, sample
from stoker.types.sampling import SamplingParams
from stoker.types.wire import SampledToken

VOCAB = 40
PROMPT = [1, 2, 3, 3]
GENERATED = [5, 5, 5, 7, 2]


def logits_of(seed: int, rows: int = 1, vocab: int = VOCAB, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def distribution(logits: list[float], p: SamplingParams, prompt: list[int], generated: list[int]) -> dict[int, float]:
    """Token -> probability, by the documented order."""
    x = list(logits)
    for i, bias in p.logit_bias.items():
        if 0 <= i < len(x):
            x[i] += bias
    for i in set(prompt + generated):
        x[i] = x[i] / p.repetition_penalty if x[i] > 0 else x[i] * p.repetition_penalty
    for i, n in Counter(generated).items():
        x[i] -= p.presence_penalty + n * p.frequency_penalty
    if len(generated) < p.min_tokens:
        for i in p.stop_ids:
            if i < len(x):
                x[i] = -math.inf
    ranked = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if p.temperature == 0:
        return {ranked[0]: 1.0}
    weights = {i: math.exp((x[i] - x[ranked[0]]) / p.temperature) for i in ranked}
    kept = ranked[: p.top_k] if p.top_k else ranked
    if p.top_p < 1:
        mass = sum(weights[i] for i in kept)
        nucleus: list[int] = []
        so_far = 0.0
        for i in kept:
            if so_far >= p.top_p * mass:
                break
            nucleus.append(i)
            so_far += weights[i]
        kept = nucleus
    kept = [i for i in kept if weights[i] >= p.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept if weights[i] > 0}


def chi_square_limit(freedom: int, confidence: float = 1 - 1e-6) -> float:
    """Wilson and Hilferty's approximation of the chi-square quantile."""
    z = NormalDist().inv_cdf(confidence)
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


def assert_follows(drawn: Counter[int], exact: dict[int, float]) -> None:
    n = drawn.total()
    assert set(drawn) <= set(exact), "a token that was cut off"
    common = [i for i in exact if exact[i] * n >= 5]
    rare = 1 - sum(exact[i] for i in common)
    cells = [(drawn[i], exact[i] * n) for i in common]
    if rare * n >= 1:
        cells.append((n - sum(drawn[i] for i in common), rare * n))
    if len(cells) > 1:
        assert sum((seen - due) ** 2 / due for seen, due in cells) < chi_square_limit(len(cells) - 1)


CASES = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.3),
    "hot": SamplingParams(temperature=2.0),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(top_p=0.7),
    "min_p": SamplingParams(min_p=0.2),
    "all filters": SamplingParams(temperature=1.5, top_k=12, top_p=0.9, min_p=0.15),
    "presence": SamplingParams(presence_penalty=2.0),
    "frequency": SamplingParams(frequency_penalty=1.3),
    "negative penalties": SamplingParams(presence_penalty=-1.0, frequency_penalty=-0.7),
    "repetition": SamplingParams(repetition_penalty=1.8),
    "repetition below 1": SamplingParams(repetition_penalty=0.5),
    "bias": SamplingParams(logit_bias={0: 3.0, 9: -100.0, 39: 1.0, 4000: 100.0, -1: 100.0}),
    "min_tokens": SamplingParams(min_tokens=6, stop_ids=(0, 3, 9)),
    "min_tokens reached": SamplingParams(min_tokens=5, stop_ids=(0, 3, 9)),
    "everything": SamplingParams(
        temperature=0.8,
        top_k=20,
        top_p=0.95,
        min_p=0.01,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        logit_bias={5: 4.0},
        min_tokens=9,
        stop_ids=(1,),
    ),
}


@pytest.mark.parametrize("vocab", [VOCAB, 600])  # below and above the number of best tokens that are looked at first
@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_exact_distribution(name: str, vocab: int) -> None:
    params = CASES[name]
    one = logits_of(3, vocab=vocab)
    rows = [SamplerRow(params, PROMPT + GENERATED, len(PROMPT)) for _ in range(6000)]
    for number, row in enumerate(rows):
        row.seed = number
    drawn = sample(one.expand(len(rows), -1), rows)
    exact = distribution(one[0].tolist(), params, PROMPT, GENERATED)
    assert_follows(Counter(token.id for token in drawn if isinstance(token, SampledToken)), exact)


def test_the_distribution_over_positions_of_one_seed() -> None:
    params = SamplingParams(seed=7, top_p=0.9)
    one = logits_of(5)
    row = SamplerRow(params, [1], 1)
    drawn: Counter[int] = Counter()
    for _ in range(3000):
        (token,) = sample(one, [row])
        assert isinstance(token, SampledToken)
        drawn[token.id] += 1
        row.append([token.id])
    assert_follows(drawn, distribution(one[0].tolist(), params, [], []))


@pytest.mark.parametrize("params", [SamplingParams(top_p=0.97), SamplingParams(top_k=700), SamplingParams(min_p=1e-3)])
@pytest.mark.parametrize("vocab", [3000, 5000])  # the second look covers 4,096 tokens, then comes the full sort
def test_wide_distributions_are_looked_at_further(params: SamplingParams, vocab: int) -> None:
    one = logits_of(1, vocab=vocab, scale=0.5)
    rows = [SamplerRow(params, [1], 1) for _ in range(800)]
    for number, row in enumerate(rows):
        row.seed = number
    exact = distribution(one[0].tolist(), params, [1], [])
    assert len(exact) > 128
    drawn = sample(one.expand(len(rows), -1), rows)
    assert_follows(Counter(token.id for token in drawn if isinstance(token, SampledToken)), exact)


@pytest.mark.parametrize("vocab", [VOCAB, 600, 9000])
def test_ties_keep_the_lowest_ids(vocab: int) -> None:
    rows = [SamplerRow(SamplingParams(top_k=3, seed=i), [1], 1) for i in range(400)]
    drawn = sample(torch.zeros(len(rows), vocab), rows)
    assert {token.id for token in drawn if isinstance(token, SampledToken)} == {0, 1, 2}


parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 1e-3, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([1e-9, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 1 << 40]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 1.5]),
    repetition_penalty=st.sampled_from([1e-9, 0.5, 1.0, 2.0]),
    logit_bias=st.dictionaries(st.integers(-2, VOCAB + 2), st.sampled_from([-100.0, 0.5, 100.0]), max_size=4),
    seed=st.integers(-(1 << 63), 1 << 64),
    logprobs=st.sampled_from([None, 0, 2, 20]),
    min_tokens=st.sampled_from([0, 3, 100]),
    stop_ids=st.lists(st.integers(0, VOCAB + 2), max_size=3).map(tuple),
)
histories = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(parameters, histories, st.integers(0, 11)), min_size=1, max_size=6),
    st.integers(0, 99),
    st.sampled_from([VOCAB, 300]),
)
def test_any_mix_of_parameters_alone_or_together(
    batch: list[tuple[SamplingParams, list[int], int]], seed: int, vocab: int
) -> None:
    """The same token whatever the batch (T-112: no pair of parameters crashes), and one that the reference allows."""

    def rows() -> list[SamplerRow]:
        return [SamplerRow(params, ids, max(1, len(ids) - made)) for params, ids, made in batch]

    logits = logits_of(seed, len(batch), vocab)
    before = logits.clone()
    together = sample(logits, rows())
    assert torch.equal(logits, before), "the caller's logits were changed"
    backwards = sample(logits.flip(0), rows()[::-1])[::-1]
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows())]
    for (params, ids, made), row, a, b, c in zip(batch, logits, together, backwards, alone, strict=True):
        assert isinstance(a, SampledToken)
        assert isinstance(b, SampledToken)
        assert isinstance(c, SampledToken)
        assert a.id == b.id == c.id
        prompt = max(1, len(ids) - made)
        exact = distribution(row.tolist(), params, ids[:prompt], ids[prompt:])
        assert a.id in exact or params.repetition_penalty < 0.1  # there float32 makes near-ties of far values
        scores = row.double().log_softmax(0)
        if params.logprobs is None:
            assert (a.logprob, a.top) == (None, [])
        else:
            assert a.logprob == pytest.approx(scores[a.id].item(), abs=1e-4)
            assert [i for i, _ in a.top] == scores.topk(params.logprobs).indices.tolist()
            assert [v for _, v in a.top] == pytest.approx(scores.topk(params.logprobs).values.tolist(), abs=1e-4)


def test_a_row_rebuilt_from_its_ids_goes_on_as_before() -> None:
    """Preemption: the row is made anew from all ids, and draws what the old one would have drawn."""
    params = SamplingParams(seed=3, frequency_penalty=0.4, presence_penalty=0.2, repetition_penalty=1.3, min_tokens=4)
    row = SamplerRow(params, PROMPT, len(PROMPT))
    known = list(PROMPT)
    for step in range(12):
        logits = logits_of(step)
        (grown,) = sample(logits, [row])
        (rebuilt,) = sample(logits, [SamplerRow(params, known, len(PROMPT))])
        assert grown == rebuilt
        assert isinstance(grown, SampledToken)
        row.append([grown.id])
        known.append(grown.id)


def test_without_a_seed_rows_differ() -> None:
    rows = [SamplerRow(SamplingParams(), [1], 1) for _ in range(64)]
    assert len({str(token) for token in sample(logits_of(1).expand(64, -1), rows)}) > 8


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_the_row_with_broken_logits_fails(bad: float, temperature: float) -> None:
    logits = logits_of(0, 3)
    logits[1, 7] = bad
    params = SamplingParams(temperature=temperature, seed=1, logprobs=2)
    drawn = sample(logits, [SamplerRow(params, [1], 1) for _ in range(3)])
    assert isinstance(drawn[1], str)
    healthy = sample(logits[[0, 2]], [SamplerRow(params, [1], 1) for _ in range(2)])
    assert [drawn[0], drawn[2]] == healthy


def test_a_row_without_any_allowed_token_fails_alone() -> None:
    params = SamplingParams(min_tokens=1, stop_ids=tuple(range(VOCAB)))
    drawn = sample(logits_of(0, 2), [SamplerRow(params, [1], 1), SamplerRow(SamplingParams(), [1], 1)])
    assert isinstance(drawn[0], str)
    assert isinstance(drawn[1], SampledToken)


def test_no_rows() -> None:
    assert sample(torch.empty(0, VOCAB), []) == []
