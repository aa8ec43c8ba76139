"""Damaged and mismatched checkpoints are refused with a message that names what is wrong."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stoker.kernels.linear import linear
from stoker.models.context import Graph
from stoker.models.gguf_meta import read_metadata
from stoker.models.graphs.llama import parse_config
from stoker.models.info import read_info
from stoker.models.loader import load_graph, preferred_dtype
from stoker.models.source import ModelError, ModelFiles, resolve
from stoker.models.text.model import TextModel
from stoker.models.weights.checkpoint import Checkpoint
from stoker.models.weights.gguf import GGUFSource
from stoker.models.weights.safetensors import SafetensorsSource

Tensors = dict[str, torch.Tensor]
NORM = "model.layers.1.input_layernorm.weight"


def load(files: ModelFiles, dtype: torch.dtype = torch.float32) -> Graph:
    return load_graph(files, dtype=dtype, device=torch.device("cpu"), progress=lambda stage, fraction: None)


@pytest.fixture
def copy(tiny_llama: ModelFiles, tmp_path: Path) -> ModelFiles:
    root = tmp_path / "copy"
    shutil.copytree(tiny_llama.root, root)
    return ModelFiles(name="copy", root=str(root), gguf=None)


def _edit(files: ModelFiles, change: Callable[[Tensors], object]) -> Path:
    path = Path(files.root) / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    return path


class _Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_a_local_folder_is_only_read(copy: ModelFiles, tmp_path: Path) -> None:
    """Code and pickles that lie in it, and a configuration that names them, run nothing; nothing in it changes."""
    root, mark = Path(copy.root), tmp_path / "ran"
    (root / "modeling_tiny.py").write_text(f"open({str(mark)!r}, 'w')")
    (root / "pytorch_model.bin").write_bytes(pickle.dumps(_Trap(mark)))
    for name, entry in (("config.json", "AutoModelForCausalLM"), ("tokenizer_config.json", "AutoTokenizer")):
        settings = json.loads((root / name).read_text())
        (root / name).write_text(json.dumps({**settings, "auto_map": {entry: "modeling_tiny.Tiny"}}))

    def state() -> dict[str, tuple[int, int]]:
        return {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in root.rglob("*")}

    before = state()
    files = resolve(str(root), revision=None, data_dir=tmp_path / "data", progress=lambda stage, fraction: None)
    assert files.root == str(root)
    assert read_info(files).context == 1024
    assert TextModel.load(files).encode("hello")
    assert len(load(files).caches) == 3
    assert state() == before
    assert not mark.exists()
    assert not (tmp_path / "data").exists()
    pickle.loads((root / "pytorch_model.bin").read_bytes())
    assert mark.exists(), "the trap works"


def test_missing_tensor(copy: ModelFiles) -> None:
    _edit(copy, lambda tensors: tensors.pop(NORM))
    with pytest.raises(ModelError, match=f"lacks the tensor {NORM}"):
        load(copy)


def test_extra_tensor(copy: ModelFiles) -> None:
    _edit(copy, lambda tensors: tensors.update({"model.layers.1.self_attn.q_norm.weight": torch.ones(16)}))
    with pytest.raises(ModelError, match=r"does not use \(model\.layers\.1\.self_attn\.q_norm\.weight\)"):
        load(copy)


def test_misshapen_tensor(copy: ModelFiles) -> None:
    _edit(copy, lambda tensors: tensors.update({NORM: torch.ones(47)}))
    with pytest.raises(ModelError, match=rf"{NORM} has shape \[47\], the configuration says \[48\]"):
        load(copy)


def test_tensor_of_integers(copy: ModelFiles) -> None:
    _edit(copy, lambda tensors: tensors.update({NORM: torch.ones(48, dtype=torch.int8)}))
    with pytest.raises(ModelError, match=f"{NORM} is stored as I8"):
        load(copy)


@pytest.mark.parametrize("kept", [0, 5, 300, 20_000])
def test_truncated_safetensors(copy: ModelFiles, kept: int) -> None:
    path = Path(copy.root) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(copy)


def test_shards_are_the_same_model(copy: ModelFiles, tiny_llama: ModelFiles) -> None:
    root = Path(copy.root)
    tensors = load_file(root / "model.safetensors")
    (root / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, root / shard)
    index = {"weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    hidden = torch.randn(3, 48, generator=torch.Generator().manual_seed(1))
    assert torch.equal(load(copy).logits(hidden), load(tiny_llama).logits(hidden))


def test_truncated_gguf(demo_files: ModelFiles, tmp_path: Path) -> None:
    assert demo_files.gguf is not None
    content = Path(demo_files.gguf).read_bytes()
    cut = tmp_path / "cut.gguf"
    for kept in (3, 1000, 1_000_000, len(content) - 1):
        cut.write_bytes(content[:kept])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            load(ModelFiles(name="cut", root=str(tmp_path), gguf=str(cut)), torch.bfloat16)


def test_gguf_of_another_architecture(demo_files: ModelFiles, tmp_path: Path) -> None:
    path = _patched(demo_files, tmp_path, b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma")
    with pytest.raises(ModelError, match="gemma"):
        load(path)


def test_gguf_metadata_that_is_not_known(demo_files: ModelFiles, tmp_path: Path) -> None:
    path = _patched(demo_files, tmp_path, b"llama.rope.freq_base", b"llama.rope.something")
    with pytest.raises(ModelError, match=r"llama\.rope\.something = 100000"):
        load(path)


def test_gguf_storage_that_is_not_known(demo_files: ModelFiles, tmp_path: Path) -> None:
    name = b"blk.29.ffn_up.weight"
    before = name + np.array([2], np.uint32).tobytes() + np.array([576, 1536], np.uint64).tobytes()
    path = _patched(demo_files, tmp_path, before + b"\x03\0\0\0", before + b"\x63\0\0\0")
    with pytest.raises(ModelError, match=r"model\.layers\.29\.mlp\.up_proj\.weight has ggml type 99"):
        load(path)


def test_gguf_is_the_same_model_as_its_safetensors(tiny_llama: ModelFiles, tmp_path: Path) -> None:
    """Written as llama GGUFs are: other names, and rows of q and k in the order that turns neighbours together."""
    config = json.loads((Path(tiny_llama.root) / "config.json").read_text())
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(Path(tiny_llama.root) / "model.safetensors").items():
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if projection in name:
                halves = tensor.reshape(config[heads], 2, config["head_dim"] // 2, -1)
                tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source, original = GGUFSource(path), SafetensorsSource(Path(tiny_llama.root))
    assert source.names == original.names
    for name in original.names:
        assert torch.equal(source.dense(name, torch.float32), original.dense(name, torch.float32)), name
    config["rms_norm_eps"] = float(np.float32(config["rms_norm_eps"]))  # GGUF keeps it in float32
    assert parse_config(source.config(), "gguf") == parse_config(config, "json")


@pytest.mark.parametrize("rows", [48, 40])
def test_four_bit_weights_of_any_height_load(tmp_path: Path, rows: int) -> None:
    """The packed layout wants whole runs of 16 rows; other heights are kept dense only."""
    values = np.random.default_rng(1).normal(size=(rows, 64)).astype(np.float32)
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType.Q4_1
    stored = gguf.quants.quantize(values, kind)
    writer.add_tensor("some.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = Checkpoint(GGUFSource(path), torch.bfloat16, torch.device("cpu"), lambda stage, fraction: None)
    weight = checkpoint.linear(["some"], [rows], 64)
    assert (weight.int4 is not None) == (rows == 48)
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    expected = torch.from_numpy(gguf.quants.dequantize(stored, kind).sum(1))
    torch.testing.assert_close(linear(x, weight).float()[0], expected, atol=0.2, rtol=0.01)


def test_preferred_dtype_is_one_that_the_device_computes_in() -> None:
    assert preferred_dtype(torch.device("cuda")) == torch.bfloat16
    assert preferred_dtype(torch.device("cpu")) in (torch.bfloat16, torch.float32)


def _patched(demo: ModelFiles, folder: Path, before: bytes, after: bytes) -> ModelFiles:
    """The demo model with `before` in its header replaced."""
    assert demo.gguf is not None
    content = Path(demo.gguf).read_bytes()
    end = min(info.offset for info in read_metadata(Path(demo.gguf)).tensors.values())
    assert before in content[:end]
    path = folder / "patched.gguf"
    path.write_bytes(content[:end].replace(before, after) + content[end:])
    return ModelFiles(name="patched", root=str(folder), gguf=str(path))
