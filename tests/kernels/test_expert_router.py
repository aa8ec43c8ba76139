"""Routing against the routers of transformers, groups and all."""

from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV3Config, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from stoker.kernels.router import Routing, route

TOKENS, HIDDEN, EXPERTS = 200, 24, 12


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2), (3, 1), (4, 4)])
@pytest.mark.parametrize("normalise", [True, False])
@torch.no_grad()
def test_sigmoid_scores_with_correction_and_groups(
    random: torch.Generator, groups: int, kept: int, normalise: bool
) -> None:
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=3,
        n_group=groups,
        topk_group=kept,
        norm_topk_prob=normalise,
        routed_scaling_factor=2.827,
    )
    reference = DeepseekV3TopkRouter(config)
    reference.weight.normal_(generator=random)
    reference.e_score_correction_bias.normal_(std=0.3, generator=random)
    x = torch.randn(TOKENS, HIDDEN, generator=random)
    rule = Routing("sigmoid", 3, normalise, 2.827, groups, kept)
    found = route(x, reference.weight, reference.e_score_correction_bias, rule)
    _, shares, chosen = reference(x)
    _assert_same(found, (shares, chosen))
    uncorrected = route(x, reference.weight, None, rule)
    assert not torch.equal(uncorrected[1], found[1])


@pytest.mark.parametrize("normalise", [True, False])
@torch.no_grad()
def test_softmax_scores(random: torch.Generator, normalise: bool) -> None:
    config = Qwen3MoeConfig(hidden_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=4, norm_topk_prob=normalise)
    reference = Qwen3MoeTopKRouter(config)
    reference.weight.normal_(generator=random)
    x = torch.randn(TOKENS, HIDDEN, generator=random)
    found = route(x, reference.weight, None, Routing("softmax", 4, normalise))
    _, shares, chosen = reference(x)
    _assert_same(found, (shares, chosen))


def test_low_precision_activations_are_scored_in_float32(random: torch.Generator) -> None:
    gate = torch.randn(EXPERTS, HIDDEN, generator=random)
    x = torch.randn(TOKENS, HIDDEN, generator=random).bfloat16()
    rule = Routing("sigmoid", 3, True)
    low, full = route(x, gate, None, rule), route(x.float(), gate, None, rule)
    assert low[0].dtype == torch.float32
    assert torch.equal(low[0], full[0])
    assert torch.equal(low[1], full[1])


def _assert_same(found: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The same share for each expert, in whatever order they are listed."""
    dense = [torch.zeros(TOKENS, EXPERTS).scatter(1, chosen, shares) for shares, chosen in (found, wanted)]
    torch.testing.assert_close(dense[0], dense[1])
