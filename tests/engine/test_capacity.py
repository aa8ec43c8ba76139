"""The report on a model: from headers alone, complete, and in agreement with what loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import makers
import pytest
import torch
from safetensors.torch import load_file, save_file

from stoker.engine import capacity
from stoker.engine.executor import kv_bytes_per_token
from stoker.models.loader import load_graph
from stoker.models.shards import Ranks
from stoker.models.source import ModelError, ModelFiles

ONE = Ranks()


@pytest.fixture
def root(tiny_llama: ModelFiles, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama.root, tmp_path / "copy"))


def test_it_agrees_with_what_loads(tiny_llama: ModelFiles, root: Path) -> None:
    graph = load_graph(tiny_llama, dtype=torch.float32, device=torch.device("cpu"), progress=lambda stage, part: None)
    report = capacity.check_model(str(root), ONE, "h100")
    assert report.ok
    assert report.kv_bytes_per_token == kv_bytes_per_token(graph, torch.bfloat16)
    assert report.state_bytes_per_sequence == 0
    assert report.bytes_per_rank == sum(t.nbytes for t in load_file(root / "model.safetensors").values())
    assert report.weights_gib == round(report.bytes_per_rank / 2**30, 2)
    assert report.fits
    assert (report.missing, report.unexpected, report.misshapen, report.problems) == ([], [], [], [])


@pytest.mark.parametrize("layers", [1, 2])
def test_layers_that_predict_further_tokens_are_counted_apart(tmp_path: Path, layers: int) -> None:
    makers.glm_45(layers).write(tmp_path)
    report = capacity.check_model(str(tmp_path), ONE, None)
    assert report.ok
    assert report.mtp_layers == layers
    names = [load_file(shard) for shard in tmp_path.glob("*.safetensors")]
    stored = {name: tensor.nbytes for shard in names for name, tensor in shard.items()}
    ahead = sum(size for name, size in stored.items() if name.startswith(("model.layers.3.", "model.layers.4.")))
    assert report.mtp_gib == round(ahead / 2**30, 2)
    assert report.bytes_per_rank == sum(stored.values()) - ahead
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": layers + 1}))
    report = capacity.check_model(str(tmp_path), ONE, None)
    assert report.ok, "it can be served all the same"
    assert report.mtp_layers == 0, "one of them is not there"


def test_two_ranks_share_heads_and_cache(root: Path) -> None:
    one, two = (capacity.check_model(str(root), ranks, "h100") for ranks in (ONE, Ranks(2)))
    assert two.ok
    assert one.bytes_per_rank / 2 < two.bytes_per_rank < one.bytes_per_rank * 0.6
    assert one.kv_bytes_per_token == two.kv_bytes_per_token
    assert two.kv_bytes_per_token_and_rank == (one.kv_bytes_per_token or 0) // 2
    assert (two.kv_budget_tokens or 0) > 1.9 * (one.kv_budget_tokens or 0)


def test_a_model_without_its_data(root: Path) -> None:
    """Only the header of one shard, and nothing of the other."""
    tensors = load_file(root / "model.safetensors")
    (root / "model.safetensors").unlink()
    names = sorted(tensors)
    for shard, members in (("a.safetensors", names[:-1]), ("b.safetensors", names[-1:])):
        save_file({name: tensors[name] for name in members}, root / shard)
    index = {"weight_map": dict.fromkeys(names[:-1], "a.safetensors") | {names[-1]: "b.safetensors"}}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    assert capacity.check_model(str(root), ONE, None).ok
    content = (root / "a.safetensors").read_bytes()
    (root / "a.safetensors").write_bytes(content[: 8 + int.from_bytes(content[:8], "little")])
    (root / "b.safetensors").unlink()
    report = capacity.check_model(str(root), ONE, None)
    assert not report.ok
    assert report.problems == ["the file a.safetensors is cut short", "the file b.safetensors is missing"]
    assert report.missing == names[-1:]
    assert report.misshapen == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"model_type": "strange"}, "model_type 'strange'"), ({"rope_scaling": {"type": "odd"}}, "odd")],
)
def test_without_a_graph_nothing_is_pretended(root: Path, change: dict[str, object], problem: str) -> None:
    config = json.loads((root / "config.json").read_text())
    config.pop("rope_parameters")
    (root / "config.json").write_text(json.dumps(config | change))
    report = capacity.check_model(str(root), ONE, "h200")
    assert not report.ok
    assert any(problem in text for text in report.problems)
    assert (report.missing, report.kv_bytes_per_token, report.kv_budget_tokens) == (None, None, None)


def test_it_does_not_fit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = capacity.check_model(str(root), ONE, None)
    assert need.fits is None
    context = (need.context or 0) * (need.kv_bytes_per_token or 0)
    for room, fits in ((0.9, False), (1.01, True)):
        size = need.bytes_per_rank + int(context * room / capacity.GPU_KV_SHARE)
        monkeypatch.setitem(capacity.HARDWARE, "h100", size)
        report = capacity.check_model(str(root), ONE, "h100")
        assert (report.fits, report.ok) == (fits, fits)


def test_a_gguf(demo_files: ModelFiles) -> None:
    report = capacity.check_model("demo", ONE, None)
    assert report.ok
    assert report.model_type == "llama"
    assert 0 < report.bytes_per_rank <= Path(demo_files.gguf or "").stat().st_size


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_no_model(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model at|lacks config\.json"):
        capacity.check_model(str(tmp_path / name), ONE, None)


def test_states_are_counted_beside_the_tokens() -> None:
    """Kimi-Linear: seven latent layers; twenty that keep 32 memories of 128 x 128 float32 and 3 inputs of 12,288."""
    one, two = (capacity.check_example("kimi-linear", ranks, "h200") for ranks in (ONE, Ranks(2)))
    assert one.ok
    assert two.ok
    assert one.kv_bytes_per_token == two.kv_bytes_per_token_and_rank == 7 * 576 * 2
    assert one.state_bytes_per_sequence == two.state_bytes_per_sequence == 20 * (32 * 128 * 128 * 4 + 3 * 12288 * 2)
    assert 0.5 < two.bytes_per_rank / one.bytes_per_rank < 0.501, "all that is large is cut"
    free = capacity.HARDWARE["h200"] - one.bytes_per_rank
    states = 4 * 64 * one.state_bytes_per_sequence
    assert one.kv_budget_tokens == (int(free * capacity.GPU_KV_SHARE) - states) // 8064
