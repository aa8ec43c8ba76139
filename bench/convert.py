"""The demo model's GGUF in the forms that peers read: a Hugging Face folder and a GGUF, both bf16, same weights.

Written once under .peers/models and kept. Only llama-type models: GGUF holds the rows of q and k interleaved for
its own rotary order, so the folder gets them back in the order that rotate-half implementations expect.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from stoker.models.source import resolve

Array = npt.NDArray[np.float32]
BF16_FILE_TYPE = 32
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def demo_gguf() -> Path:
    files = resolve("demo", revision=None, data_dir=Path(".stoker"), progress=lambda stage, fraction: None)
    assert files.gguf is not None
    return Path(files.root) / files.gguf


def hf_folder(peers: Path) -> Path:
    """The demo model as config.json, model.safetensors and tokenizer files."""
    return _once(peers / "models" / "demo-hf", _write_folder)


def bf16_gguf(peers: Path) -> Path:
    """The demo model as one bf16 GGUF."""
    return _once(peers / "models" / "demo-bf16", _write_gguf) / "demo-bf16.gguf"


def _once(folder: Path, write: Callable[[GGUFReader, Path], None]) -> Path:
    """`folder`, written first if it is not there; one that was interrupted is never taken for whole."""
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(GGUFReader(demo_gguf()), part)
        part.rename(folder)
    return folder


def hf_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    stem, _, kind = gguf_name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.{kind}"


def rotate_half_order(weight: Array, heads: int) -> Array:
    """Rows of a q or k projection [heads * d, in]: from pairs side by side (GGUF) to first halves, then second."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _write_folder(reader: GGUFReader, folder: Path) -> None:
    def value(key: str) -> Any:
        field = reader.get_field(key)
        assert field is not None, key
        return field.contents()

    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight: Array = dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            weight = rotate_half_order(weight, heads)
        elif ".attn_k." in tensor.name:
            weight = rotate_half_order(weight, kv_heads)
        tensors[hf_name(tensor.name)] = torch.tensor(weight, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        "rope_theta": value("llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "vocab_size": value("llama.vocab_size"),
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _write_gguf(reader: GGUFReader, folder: Path) -> None:
    """All matrices in bf16, norms in fp32, metadata as it was."""
    writer = GGUFWriter(folder / "demo-bf16.gguf", "llama")
    skipped = {"general.architecture", "general.file_type", "general.quantization_version"}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in skipped:
            continue
        array = field.types[0] is GGUFValueType.ARRAY
        writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if array else None)
    writer.add_file_type(BF16_FILE_TYPE)
    for tensor in reader.tensors:
        weight: Array = dequantize(tensor.data, tensor.tensor_type)
        if weight.ndim == 1:
            writer.add_tensor(tensor.name, weight)
        else:
            kind = GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
