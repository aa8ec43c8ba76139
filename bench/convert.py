"""The demo model's GGUF in the forms that peers read: a Hugging Face folder and a GGUF, both bf16, same weights.

Written once under .peers/models and kept. Only llama-type models.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from stoker.models.gguf_meta import read_metadata
from stoker.models.source import resolve
from stoker.models.text.gguf_tokenizer import from_metadata, special_texts
from stoker.models.weights.gguf import GGUFSource

BF16_FILE_TYPE = 32
BF16 = GGMLQuantizationType.BF16


def demo_gguf() -> Path:
    files = resolve("demo", revision=None, data_dir=Path(), progress=lambda stage, fraction: None)
    assert files.gguf is not None
    return Path(files.gguf)


def hf_folder(peers: Path) -> Path:
    """The demo model as config.json, model.safetensors and tokenizer files."""
    return _once(peers / "models" / "demo-hf", write_folder)


def bf16_gguf(peers: Path) -> Path:
    """The demo model as one bf16 GGUF."""
    return _once(peers / "models" / "demo-bf16", lambda folder: write_gguf(folder / "demo.gguf")) / "demo.gguf"


def _once(folder: Path, write: Callable[[Path], None]) -> Path:
    """`folder`, written first if it is not there; one that was interrupted is never taken for whole."""
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(part)
        part.rename(folder)
    return folder


def write_folder(folder: Path) -> None:
    source = GGUFSource(demo_gguf())
    metadata = source.metadata
    config = source.config()
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "hidden_act": "silu",
        # Newer readers look for rope_parameters, older ones for the rope_theta that is there already.
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
    }
    tokenizer = {
        **special_texts(metadata),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": metadata["tokenizer.chat_template"],
    }
    tensors = {name: source.dense(name, torch.bfloat16).contiguous() for name in source.names}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1))
    from_metadata(metadata, "the demo model").save(str(folder / "tokenizer.json"))


def write_gguf(target: Path) -> None:
    """All matrices in bf16, norms in fp32, metadata as it was."""
    path = demo_gguf()
    metadata, tensors = read_metadata(path)
    stored = np.memmap(path, dtype=np.uint8, mode="r")
    writer = GGUFWriter(target, "llama")
    for key, value in metadata.items():
        match value:
            case _ if key in ("general.architecture", "general.file_type", "general.quantization_version"):
                pass  # the writer's own, or no longer true
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
            case _:
                raise ValueError(f"{key} has a value of an unexpected kind: {value!r}")
    writer.add_file_type(BF16_FILE_TYPE)
    for name, info in tensors.items():
        kind = GGMLQuantizationType(info.type)
        elements, size = GGML_QUANT_SIZES[kind]
        count = info.elements // elements * size
        data = stored[info.offset : info.offset + count].reshape(*info.shape[:-1], -1)
        weight = dequantize(data, kind).reshape(info.shape)
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, quantize(weight, BF16), raw_dtype=BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
