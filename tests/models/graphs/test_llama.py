"""The llama graph against transformers, one whole prompt at a time, for every variant of its configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig as ReferenceConfig
from transformers import LlamaForCausalLM

from stoker.kernels.attention import attend_plain
from stoker.models.context import BatchLayout, Graph
from stoker.models.graphs.llama import build, parse_config
from stoker.models.loader import load_graph
from stoker.models.source import ModelError, ModelFiles
from stoker.models.weights.checkpoint import Checkpoint
from stoker.models.weights.safetensors import SafetensorsSource

CPU = torch.device("cpu")
SHAPES: dict[str, Any] = {
    "vocab_size": 130,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


class OnePrompt:
    """A context with no cache: each layer attends over the tokens of the one prompt it was made for."""

    def __init__(self, length: int) -> None:
        positions = torch.arange(length)
        self.layout = BatchLayout(
            positions=positions,
            slots=positions,
            query_starts=[0, length],
            context_lens=[length],
            tables=torch.zeros(1, 1, dtype=torch.int64),
            block_size=length,
        )

    def paged(self, layer: int) -> OnePrompt:
        return self

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(groups, dim=1).transpose(0, 1)[None] for part in (k, v))
        out, _ = attend_plain(q.transpose(0, 1)[None], k, v, scale, causal=True)
        return out[0].transpose(0, 1)


def all_logits(graph: Graph, ids: torch.Tensor) -> torch.Tensor:
    return graph.logits(graph.forward(ids, OnePrompt(len(ids))))


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., LlamaForCausalLM]:
    """Writes a random model of SHAPES and the given changes to tmp_path and returns it."""

    def save(**changes: Any) -> LlamaForCausalLM:
        torch.manual_seed(3)
        model = LlamaForCausalLM(ReferenceConfig(**{**SHAPES, **changes})).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3)
        model.save_pretrained(tmp_path)
        return model

    return save


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 10, "num_key_value_heads": 6},
        {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ],
    ids=["plain", "tied", "biases", "head_dim", "one_kv_head", "linear_rope", "llama3_rope"],
)
@torch.no_grad()
def test_same_logits_as_transformers(
    saved: Callable[..., LlamaForCausalLM], tmp_path: Path, changes: dict[str, Any]
) -> None:
    reference = saved(**changes)
    graph = load_graph(_files(tmp_path), dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)
    ids = torch.randint(SHAPES["vocab_size"], (150,), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(all_logits(graph, ids), reference(ids[None]).logits[0], atol=1e-4, rtol=0)


@torch.no_grad()
def test_old_spelling_of_rope_scaling(saved: Callable[..., LlamaForCausalLM], tmp_path: Path) -> None:
    saved()
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters")
    old = parse_config({**config, "rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, "old")
    new = parse_config(
        {**config, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}}, "new"
    )
    assert old == new


def test_a_model_that_stores_its_tied_head_loads(saved: Callable[..., LlamaForCausalLM], tmp_path: Path) -> None:
    saved()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    graph = load_graph(_files(tmp_path), dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)
    assert graph.vocab_size == SHAPES["vocab_size"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0, "factor": 4.0}}, "longrope"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "beta": 1.0}}, "beta"),
        ({"rope_parameters": {"rope_type": "default", "factor": 4.0}}, "default"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"num_experts": 8}, "num_experts"),
        ({"num_attention_heads": 5, "head_dim": 8}, "5 heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_config({**SHAPES, **change}, "somewhere")


def test_another_architecture_is_refused(saved: Callable[..., LlamaForCausalLM], tmp_path: Path) -> None:
    saved()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(ModelError, match="mamba"):
        load_graph(_files(tmp_path), dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)


def test_progress_reaches_one_and_never_falls(saved: Callable[..., LlamaForCausalLM], tmp_path: Path) -> None:
    saved()
    told: list[float] = []
    source = SafetensorsSource(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    build(config, Checkpoint(source, torch.float32, CPU, lambda stage, fraction: told.append(fraction)))
    assert told == sorted(told)
    assert told[-1] == 1.0


def _files(root: Path) -> ModelFiles:
    return ModelFiles(name="test", root=str(root), gguf=None)
