"""Frequencies and factors of the rotary settings against transformers' own functions, published settings included."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from stoker.models.graphs.rotary import YarnScaling, frequencies, magnitude, softmax_factor, spelled_anew

KIMI = {"factor": 64.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}


@pytest.mark.parametrize(
    "settings",
    [
        {**KIMI, "beta_fast": 32.0, "beta_slow": 1.0},
        {**KIMI, "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0},
        {**KIMI, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
        {**KIMI, "mscale": 0.7, "mscale_all_dim": 1.2},
        {**KIMI, "attention_factor": 1.5},
        {"factor": 4.0, "original_max_position_embeddings": 32768},
        {"factor": 1.0, "original_max_position_embeddings": 64, "beta_fast": 4.0, "beta_slow": 2.0},
    ],
)
def test_yarn(settings: dict[str, Any]) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 50000.0, **settings}
    config = DeepseekV3Config(qk_rope_head_dim=64, max_position_embeddings=262144, rope_parameters=rope)
    wanted, factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    scaling = YarnScaling(**settings)
    torch.testing.assert_close(frequencies(64, 50000.0, scaling), wanted, rtol=1e-6, atol=0)
    assert magnitude(scaling) == pytest.approx(factor)


def test_softmax_grows_by_the_square_of_the_second_mscale_alone() -> None:
    assert softmax_factor(YarnScaling(**KIMI)) == pytest.approx((0.1 * math.log(64) + 1) ** 2)
    assert softmax_factor(YarnScaling(factor=64.0, original_max_position_embeddings=4096, mscale=1.0)) == 1.0
    assert softmax_factor(None) == 1.0


def test_old_and_new_spelling_are_one() -> None:
    old = {"rope_theta": 3.0, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 3.0, "partial_rotary_factor": 0.5}
    assert spelled_anew(old) == spelled_anew({"rope_parameters": new})
    assert spelled_anew({"rope_theta": 3.0, "rope_scaling": None}) == {"rope_theta": 3.0, "rope_scaling": None}
