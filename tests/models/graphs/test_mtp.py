"""Layers that predict further tokens: loaded when asked for, as transformers computes them; left out otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest
import torch
from dense_reference import reference_model, take_epsilon
from parity_rig import CPU
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeForCausalLM, Glm4MoeLiteForCausalLM, GlmMoeDsaForCausalLM
from transformers.modeling_layers import MtpModel

from stoker.engine.executor import kv_bytes_per_token
from stoker.engine.kv import BatchContext, make_store
from stoker.models.context import BatchLayout, Graph
from stoker.models.loader import load_graph
from stoker.models.source import ModelError, ModelFiles

LENGTH, BLOCK, CHUNK = 90, 4, 13
MODELS: dict[str, tuple[Callable[[], makers.Maker], Any, int]] = {
    "GLM-4.5, with copies of embedding and head": (makers.glm_45, Glm4MoeForCausalLM, 3),
    "GLM-4.5, two layers in a row": (partial(makers.glm_45, 2), Glm4MoeForCausalLM, 3),
    "GLM-4.7-Flash": (makers.glm_47_flash, Glm4MoeLiteForCausalLM, 3),
    "GLM-5.3, with an indexer": (makers.glm_5, GlmMoeDsaForCausalLM, 7),
}


def load(root: Path, *, mtp: bool) -> Graph:
    files = ModelFiles(name="m", root=str(root), gguf=None)
    return load_graph(files, dtype=torch.float32, device=CPU, progress=lambda stage, part: None, mtp=mtp)


@pytest.fixture(scope="module", params=MODELS)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A maker's folder, transformers' model of it, and transformers' layers behind that."""
    make, kind, layers = MODELS[request.param]
    root, dense = tmp_path_factory.mktemp("maker"), tmp_path_factory.mktemp("dense")
    model = reference_model(make(), kind, root, dense)
    count = json.loads((root / "config.json").read_text())["num_nextn_predict_layers"]
    model.config.num_mtp_layers = count
    for key, value in (("mlp_layer_types", "sparse"), ("layer_types", "indexed_attention"), ("indexer_types", "full")):
        if getattr(model.config, key, None) is not None:
            setattr(model.config, f"mtp_{key}", [value] * count)
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layers + index}\." for index in range(count)]
    further = MtpModel.from_pretrained(model)
    if kind is GlmMoeDsaForCausalLM:
        _bare(further)
    take_epsilon(further, model.config.rms_norm_eps)
    return root, model.eval(), further.eval()


def _bare(further: Any) -> None:
    """transformers has no MTP for layers with an indexer: their mask must be written out, and they return their choice
    beside the hidden states."""
    further.config.layer_types = None
    further.config._attn_implementation = "eager"
    for layer in further.layers:
        forward = layer.mtp_block.forward
        layer.mtp_block.forward = lambda *args, forward=forward, **named: forward(*args, **named)[0]


@torch.inference_mode()
def run(graph: Graph, ids: list[int]) -> list[torch.Tensor]:
    """Logits of the model and of each layer behind it, which all have seen the sequence in chunks, their positions and
    slots the same and their tokens one further each."""
    slots = -(-len(ids) // BLOCK) * BLOCK
    stores = [make_store(spec, slots, 1, torch.float32, CPU) for spec in graph.caches]
    table = np.random.default_rng(4).permutation(slots // BLOCK)[None]
    hidden = torch.empty(0)
    outputs: list[torch.Tensor] = []
    for ahead in range(len(graph.mtp) + 1):
        made: list[torch.Tensor] = []
        for start in range(0, len(ids) - ahead, CHUNK):
            end = min(start + CHUNK, len(ids) - ahead)
            places = torch.arange(start, end)
            blocks = torch.from_numpy(table)
            layout = BatchLayout(
                positions=places,
                slots=blocks[0, places // BLOCK] * BLOCK + places % BLOCK,
                query_starts=[0, end - start],
                context_lens=[end],
                tables=blocks[:, : -(-end // BLOCK)],
                block_size=BLOCK,
            )
            context = BatchContext(layout, table[:, : -(-end // BLOCK)], stores)
            tokens = torch.tensor(ids[start + ahead : end + ahead])
            if ahead:
                made.append(graph.mtp[ahead - 1].forward(tokens, hidden[start:end], context))
            else:
                made.append(graph.forward(tokens, context))
        hidden = torch.cat(made)
        outputs.append((graph.mtp[ahead - 1] if ahead else graph).logits(hidden))
    return outputs


@torch.no_grad()
def expected(model: Any, further: Any, ids: list[int]) -> list[torch.Tensor]:
    whole = torch.tensor([ids])
    hidden = model.model(whole).last_hidden_state
    outputs = [model.lm_head(hidden)[0]]
    for index in range(len(further.layers)):
        hidden = further.forward_layer(
            index, hidden[:, :-1], torch.arange(index + 1, len(ids))[None], None, input_ids=whole[:, index + 1 :]
        )
        outputs.append(further._project_to_logits(hidden)[0])
    return outputs


def test_same_logits_as_transformers(published: tuple[Path, Any, Any]) -> None:
    root, model, further = published
    graph = load(root, mtp=True)
    assert len(graph.mtp) == len(further.layers)
    draw = torch.Generator().manual_seed(9)
    ids = torch.randint(0, graph.vocab_size, (LENGTH,), generator=draw).tolist()
    for found, want in zip(run(graph, ids), expected(model, further, ids), strict=True):
        assert found.shape == want.shape
        assert (found - want).abs().max() < 1e-4


def test_they_cost_nothing_unless_they_are_asked_for(published: tuple[Path, Any, Any]) -> None:
    with_, without = (load(published[0], mtp=mtp) for mtp in (True, False))
    assert not without.mtp
    assert len(with_.caches) == len(without.caches) + len(with_.mtp)
    assert kv_bytes_per_token(with_, torch.float32) > kv_bytes_per_token(without, torch.float32)
    states = torch.randn(3, published[1].config.hidden_size)
    assert torch.equal(with_.logits(states), without.logits(states))


def test_a_layer_that_is_not_whole_is_an_error_only_where_it_is_asked_for(tmp_path: Path) -> None:
    makers.glm_45().write(tmp_path)
    for shard in tmp_path.glob("*.safetensors"):
        tensors = load_file(shard)
        tensors.pop("model.layers.3.eh_proj.weight", None)
        save_file(tensors, shard, {"format": "pt"})
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    del index["weight_map"]["model.layers.3.eh_proj.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert not load(tmp_path, mtp=False).mtp
    with pytest.raises(ModelError, match=r"lacks the tensor model\.layers\.3\.eh_proj\.weight"):
        load(tmp_path, mtp=True)


def test_a_layer_reads_its_own_embedding_and_head_where_they_differ(tmp_path: Path) -> None:
    makers.glm_45().write(tmp_path)
    before = load(tmp_path, mtp=True)
    for shard in tmp_path.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in ("model.layers.3.embed_tokens.weight", "model.layers.3.shared_head.head.weight"):
            if name in tensors:
                tensors[name] = -tensors[name]
        save_file(tensors, shard, {"format": "pt"})
    after = load(tmp_path, mtp=True)
    ids = list(range(20))
    (plain, ahead), (same, other) = run(before, ids), run(after, ids)
    assert torch.equal(plain, same)
    assert not torch.allclose(ahead, other)
    states = torch.randn(2, 160)
    assert torch.equal(after.mtp[0].logits(states), -before.mtp[0].logits(states))


def test_a_model_without_such_layers_has_none(tmp_path: Path) -> None:
    makers.kimi_k2().write(tmp_path)
    assert not load(tmp_path, mtp=True).mtp
