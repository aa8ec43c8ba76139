"""transformers' model of what a maker's folder stands for: the same values, dense and in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from makers import Maker
from safetensors.torch import save_file


def reference_model(maker: Maker, kind: Any, root: Path, dense: Path) -> Any:
    """Writes the maker's folder to `root` and its values to `dense`, and loads those as a model of class `kind`. Its
    norms on latents take the configuration's epsilon, as ours do."""
    values = {name: tensor.contiguous() for name, tensor in maker.write(root).items()}
    save_file(values, dense / "model.safetensors", {"format": "pt"})
    outer = json.loads((root / "config.json").read_text())
    config = outer.get("text_config", outer)
    config.pop("quantization_config", None)
    if config.get("mla_use_nope"):
        del config["rope_scaling"]  # null, for it has no positions; transformers warns of the word
    config |= {"model_type": kind.config_class.model_type, "torch_dtype": "float32", "dtype": "float32"}
    (dense / "config.json").write_text(json.dumps(config))
    model = kind.from_pretrained(dense, dtype=torch.float32)
    take_epsilon(model, config["rms_norm_eps"])
    return model


def take_epsilon(model: torch.nn.Module, epsilon: float) -> None:
    """Of the norms on latents, for which transformers takes 1e-6 whatever the configuration says."""
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = epsilon
