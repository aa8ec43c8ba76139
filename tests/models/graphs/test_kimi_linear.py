"""Kimi-Linear's graph against transformers, and its configuration in both spellings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kimi_linear_models import KIMI, LINEAR, tiny_kimi_linear
from parity_rig import CPU, SITUATIONS, Reference, Rig, chunks, prefix_hits, save_and_load
from safetensors.torch import load_file, save_file
from transformers import KimiLinearConfig

from stoker.engine.executor import bytes_per_state, kv_bytes_per_token
from stoker.kernels import delta
from stoker.models.context import Graph
from stoker.models.graphs.kimi_linear import parse_config
from stoker.models.loader import load_graph
from stoker.models.source import ModelError, ModelFiles

VARIANTS = {"published": {}, "query latent, biases, groups": {
    "q_lora_rank": 14, "attention_bias": True, "num_expert_group": 2, "num_shared_experts": 1,
    "linear_attn_config": {**LINEAR, "short_conv_kernel_size": 4},
}}  # fmt: skip


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Graph]:
    return save_and_load(tiny_kimi_linear(request.param), tmp_path_factory.mktemp("kimi_linear"))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()


def test_a_device_that_takes_chunks(pair: tuple[Reference, Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "steps", delta.chunks)
    rig = Rig(*pair, shuffled=True)
    prefix_hits(rig)
    rig.check()


def test_a_prefix_without_its_state_is_another_prompt(pair: tuple[Reference, Graph]) -> None:
    """Latents alone do not carry it: the same blocks behind an empty state give other logits."""
    rig = Rig(*pair, shuffled=True)
    index = len(rig.reference.sequences) - 1
    ids = rig.reference.sequences[index]
    start = rig.start(0, index)
    rig.step([rig.work(0, 0, 64)], [start], {0: index})
    table, last = rig.tables[0][:16], []
    for seq, state in ((1, None), (2, rig.state[0])):
        start = rig.start(seq, index, shared=table, state=state)
        rig.step([rig.work(seq, 64, len(ids) - 64)], [start], {seq: index})
        last.append(rig.logits[index][len(ids) - 1])
    (wrong, right), want = last, rig.reference.logits[index][-1]
    assert (right - want).abs().max() < 1e-4 < 0.1 < (wrong - want).abs().max()


def test_what_is_kept_per_token_and_per_sequence(pair: tuple[Reference, Graph]) -> None:
    kinds = [type(spec).__name__ for spec in pair[1].caches]
    assert kinds == ["RecurrentSpec", "RecurrentSpec", "LatentSpec", "RecurrentSpec", "LatentSpec"]
    taps = sum(getattr(spec, "taps", 0) for spec in pair[1].caches)
    assert kv_bytes_per_token(pair[1], torch.bfloat16) == 2 * (16 + 6) * 2
    assert bytes_per_state(pair[1], torch.bfloat16) == taps * 3 * 5 * 8 * 2 + 3 * 5 * 8 * 8 * 4


def test_the_maker_stores_the_dense_layers_below_mlp(tmp_path: Path) -> None:
    reference, graph = save_and_load(tiny_kimi_linear({}), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    old, new = "layers.0.block_sparse_moe.", "layers.0.mlp."
    assert any(old in name for name in tensors), "transformers writes them elsewhere"
    save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, file)
    again = load_graph(
        ModelFiles(name="tiny", root=str(tmp_path), gguf=None),
        dtype=torch.float32,
        device=CPU,
        progress=lambda stage, fraction: None,
    )
    hidden = torch.randn(3, KIMI["hidden_size"])
    assert torch.equal(again.logits(hidden), graph.logits(hidden))
    rig = Rig(reference, again, shuffled=False)
    chunks(rig)
    rig.check()


def test_both_spellings_say_the_same(tmp_path: Path) -> None:
    """The maker's keys; those of transformers' own attributes; and what transformers saves, which has some of each."""
    maker = parse_config(PUBLISHED, "maker")
    assert maker.layer_types.count("full_attention") == 7
    assert maker.layer_types[3] == maker.layer_types[26] == "full_attention"
    assert maker.mlp_layer_types == ("dense",) + ("sparse",) * 26
    library = KimiLinearConfig(**{key: value for key, value in PUBLISHED.items() if key != "rope_scaling"})
    library.save_pretrained(tmp_path)
    assert parse_config(json.loads((tmp_path / "config.json").read_text()), "saved") == maker
    attributes = library.to_dict()
    del attributes["linear_attn_config"]
    assert parse_config(attributes, "library") == maker


PUBLISHED: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "bos_token_id": 163584,
    "dtype": "bfloat16",
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "pad_token_id": 163839,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_cache": True,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        # what Kimi K3's text model, of the same model_type, has beside
        ({"linear_attn_config": {**LINEAR, "gate_lower_bound": -5.0}}, "gate_lower_bound"),
        ({"linear_attn_config": {**LINEAR, "use_full_rank_gate": True}}, "use_full_rank_gate"),
        ({"attn_res_block_size": 12}, "attn_res_block_size"),
        ({"mla_use_output_gate": True}, "mla_use_output_gate"),
        ({"routed_expert_hidden_size": 20}, "routed_expert_hidden_size"),
        ({"latent_moe_use_norm": True}, "latent_moe_use_norm"),
        ({"hidden_act": "situ"}, "hidden_act"),
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"moe_router_activation_func": "softmax"}, "scoring_func"),
        ({"use_grouped_topk": False}, "use_grouped_topk"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"num_key_value_heads": 1}, "num_key_value_heads"),
        ({"num_experts_per_token": 9}, "9 of 6 experts"),
        ({"linear_attn_config": {**LINEAR, "kda_layers": [1, 2]}}, "full_attn_layers"),
        ({"linear_attn_config": {**LINEAR, "kda_layers": [1, 2, 3, 4]}}, "full_attn_layers"),
        ({"linear_attn_config": {**LINEAR, "full_attn_layers": [3, 5, 6]}}, "layer_types names 6"),
        ({"linear_attn_config": {**LINEAR, "kda_layers": [1, 2, 3, 4, 5], "full_attn_layers": []}}, "full_attention"),
        ({"linear_attn_config": {**LINEAR, "num_heads": "many"}}, "num_heads"),
        ({"linear_attn_config": [1]}, "linear_attn_config"),
        ({"linear_attn_config": None}, "linear_"),
        ({"linear_attn_config": {**LINEAR, "short_conv_kernel_size": 1}}, "short_conv_kernel_size"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"qk_rope_head_dim": 5}, "qk_rope_head_dim"),
        ({"kv_lora_rank": None}, "kv_lora_rank"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_config({**KIMI, **change}, "somewhere")
    parse_config(KIMI, "somewhere")
