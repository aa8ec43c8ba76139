"""GLM-4-9B-0414's graph against transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from parity_rig import SITUATIONS, Reference, Rig, randomise, save_and_load
from transformers import Glm4Config, Glm4ForCausalLM

from stoker.models.context import Graph
from stoker.models.graphs.glm4 import parse_config
from stoker.models.source import ModelError

GLM: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rms_norm_eps": 1.5625e-7,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": [1, 2],
}


@pytest.fixture(scope="module", params=[True, False], ids=["biases", "no biases"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Graph]:
    model = Glm4ForCausalLM(Glm4Config(**GLM, attention_bias=request.param))
    randomise(model)
    return save_and_load(model, tmp_path_factory.mktemp("glm4"))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()


def test_what_absent_keys_mean() -> None:
    parsed = parse_config({**GLM, "rope_parameters": {"rope_theta": 1000.0}}, "somewhere")
    assert parsed.attention_bias
    assert parsed.rotary == 6


@pytest.mark.parametrize(
    ("change", "named"),
    [({"hidden_act": "gelu"}, "hidden_act"), ({"num_key_value_heads": 5}, "5 KV heads"), ({"head_dim": 10}, "even")],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_config({**GLM, **change}, "somewhere")
