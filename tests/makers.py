"""Tiny random models in folders as their makers publish them: configuration in the maker's spelling, tensors under the
maker's names in shards with an index, matrices quantised as the maker does it, the maker's kind of tokenizer.

The shapes are written from the published tables, not from what our graphs ask for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from maker_tokenizers import write_glm_tokenizer, write_kimi_tokenizer
from quantisers import Quantiser, Tensors, compressed_tensors, float8_blocks, float8_rows, int4_groups
from safetensors.torch import save_file

from stoker.models.examples import expand, read

Shapes = dict[str, tuple[int, ...]]
SHARDS = 3
FLOAT32 = ("e_score_correction_bias", "A_log", "dt_bias")  # whatever the rest is stored in
DYNAMIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}


@dataclass(frozen=True)
class Maker:
    """One model. `config` is its language model's; `outer` what that is the `text_config` of, if it is part of a larger
    model. `shapes` maps patterns of names (as in `stoker.models.examples`) to sizes; those that match `quantised` are
    stored as `quantise` says. `others` are tensors of other parts."""

    config: dict[str, Any]
    shapes: Shapes
    tokenizer: Callable[[Path], dict[str, int]]
    quantised: str = "none"
    quantise: Quantiser = int4_groups
    outer: dict[str, Any] | None = None
    prefix: str = ""
    others: Shapes = field(default_factory=dict[str, tuple[int, ...]])
    eos: tuple[str, ...] = ()
    generation_eos: tuple[str, ...] = ()

    def write(self, folder: Path) -> Tensors:
        """Fills `folder`; returns what the language model's tensors stand for, in float32, without the prefix."""
        ids = self.tokenizer(folder)
        ends = [ids[text] for text in self.eos]
        config = {**self.config, "vocab_size": max(ids.values()) + 1, "eos_token_id": ends, "pad_token_id": ends[0]}
        whole = config if self.outer is None else {**self.outer, "text_config": config}
        (folder / "config.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
        generation = {"eos_token_id": [ids[text] for text in self.generation_eos], "do_sample": True}
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
        draw = torch.Generator().manual_seed(20)
        stored: Tensors = {}
        values: Tensors = {}
        for name, shape in _each(self.shapes, config["vocab_size"]):
            tensor = values[original] if (original := _copied(name)) in values else _random(name, shape, draw)
            if re.fullmatch(self.quantised, name):
                parts, values[name] = self.quantise(name.removesuffix(".weight"), tensor)
            else:
                parts = {name: tensor if name.endswith(FLOAT32) else tensor.bfloat16()}
                values[name] = parts[name].float()
            stored |= {self.prefix + part: data for part, data in parts.items()}
        stored |= {name: _random(name, shape, draw).bfloat16() for name, shape in _each(self.others, 0)}
        _save(stored, folder)
        return values


def _each(shapes: Shapes, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """All names and sizes; a size of 0 is the vocabulary's."""
    for pattern, shape in shapes.items():
        for name in expand(pattern):
            yield name, tuple(size or vocabulary for size in shape)


def _copied(name: str) -> str | None:
    """What a layer that predicts ahead has a copy of."""
    if not name.startswith("model.layers."):
        return None
    ends = {".embed_tokens.weight": "model.embed_tokens.weight", ".shared_head.head.weight": "lm_head.weight"}
    return next((original for end, original in ends.items() if name.endswith(end)), None)


def _random(name: str, shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """As `parity_rig.randomise`: norms around 1, biases around 0, matrices that keep the size of what they multiply, a
    head that spreads logits."""
    tensor = torch.empty(shape)
    if name.endswith(("A_log", "dt_bias")):  # as they are before training: decays of all speeds
        return tensor.uniform_(*((0.0, 2.7) if name.endswith("A_log") else (-7.0, -2.0)), generator=draw)
    if name.endswith("bias"):
        return tensor.normal_(0.0, 0.3 if "correction" in name else 0.2, generator=draw)
    if len(shape) == 1:
        return tensor.uniform_(0.5, 1.5, generator=draw)
    if "embed_tokens" in name:
        return tensor.normal_(0.0, 1.0, generator=draw)
    return tensor.normal_(0.0, (5 if "head.weight" in name else 1) * shape[-1] ** -0.5, generator=draw)


def _save(tensors: Tensors, folder: Path) -> None:
    """Shards of about equal size, in the order of names, and the index that says what is where."""
    names = sorted(tensors)
    places = {
        name: f"model-{index * SHARDS // len(names) + 1:05}-of-{SHARDS:06}.safetensors"
        for index, name in enumerate(names)
    }
    for shard in sorted(set(places.values())):
        own = {name: tensors[name].contiguous() for name in names if places[name] == shard}
        save_file(own, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def _frame(config: dict[str, Any], layers: int) -> Shapes:
    hidden = config["hidden_size"]
    return {
        "model.embed_tokens.weight": (0, hidden),
        "lm_head.weight": (0, hidden),
        "model.norm.weight": (hidden,),
        f"model.layers.{{0..{layers - 1}}}.{{input,post_attention}}_layernorm.weight": (hidden,),
    }


def _feeds(config: dict[str, Any], layers: int) -> Shapes:
    """Dense layers, then sparse ones with shared experts."""
    hidden, dense, inner = config["hidden_size"], config["first_k_dense_replace"], config["moe_intermediate_size"]
    experts, shared = config["n_routed_experts"], config["n_shared_experts"] * config["moe_intermediate_size"]
    flat, sparse = f"model.layers.{{0..{dense - 1}}}.mlp", f"model.layers.{{{dense}..{layers - 1}}}.mlp"
    each = f"{sparse}.experts.{{0..{experts - 1}}}"
    return {
        f"{flat}.{{gate,up}}_proj.weight": (config["intermediate_size"], hidden),
        f"{flat}.down_proj.weight": (hidden, config["intermediate_size"]),
        f"{sparse}.gate.weight": (experts, hidden),
        f"{sparse}.gate.e_score_correction_bias": (experts,),
        f"{sparse}.shared_experts.{{gate,up}}_proj.weight": (shared, hidden),
        f"{sparse}.shared_experts.down_proj.weight": (hidden, shared),
        f"{each}.{{gate,up}}_proj.weight": (inner, hidden),
        f"{each}.down_proj.weight": (hidden, inner),
    }


def _latent(config: dict[str, Any], layers: int) -> Shapes:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    plain, rotary, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    name = f"model.layers.{{0..{layers - 1}}}.self_attn"
    return {
        f"{name}.q_a_proj.weight": (config["q_lora_rank"], hidden),
        f"{name}.q_a_layernorm.weight": (config["q_lora_rank"],),
        f"{name}.q_b_proj.weight": (heads * (plain + rotary), config["q_lora_rank"]),
        f"{name}.kv_a_proj_with_mqa.weight": (rank + rotary, hidden),
        f"{name}.kv_a_layernorm.weight": (rank,),
        f"{name}.kv_b_proj.weight": (heads * (plain + value), rank),
        f"{name}.o_proj.weight": (hidden, heads * value),
    }


def _grouped(config: dict[str, Any], layers: int) -> Shapes:
    hidden, size = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    name = f"model.layers.{{0..{layers - 1}}}.self_attn"
    return {
        f"{name}.q_proj.weight": (q, hidden),
        f"{name}.q_proj.bias": (q,),
        f"{name}.{{k,v}}_proj.weight": (kv, hidden),
        f"{name}.{{k,v}}_proj.bias": (kv,),
        f"{name}.{{q,k}}_norm.weight": (size,),
        f"{name}.o_proj.weight": (hidden, q),
    }


def _indexer(config: dict[str, Any], layers: str) -> Shapes:
    hidden, heads, size = config["hidden_size"], config["index_n_heads"], config["index_head_dim"]
    name = f"model.layers.{{{layers}}}.self_attn.indexer"
    return {
        f"{name}.wq_b.weight": (heads * size, config["q_lora_rank"]),
        f"{name}.wk.weight": (size, hidden),
        f"{name}.k_norm.{{weight,bias}}": (size,),
        f"{name}.weights_proj.weight": (heads, hidden),
    }


def _ahead(config: dict[str, Any], first: int, count: int, *, own: bool) -> Shapes:
    """What layers that predict ahead have beside a layer's own tensors; `own`: copies of embedding and head too."""
    hidden, name = config["hidden_size"], f"model.layers.{{{first}..{first + count - 1}}}"
    copies = {f"{name}.{{embed_tokens,shared_head.head}}.weight": (0, hidden)} if own else {}
    return {
        f"{name}.eh_proj.weight": (hidden, 2 * hidden),
        f"{name}.{{enorm,hnorm,shared_head.norm}}.weight": (hidden,),
        **copies,
    }


def _vision(config: dict[str, Any], hidden: int) -> Shapes:
    size, inner, side = config["vt_hidden_size"], config["vt_intermediate_size"], config["init_pos_emb_height"]
    block = f"vision_tower.encoder.blocks.{{0..{config['vt_num_hidden_layers'] - 1}}}"
    return {
        "vision_tower.patch_embed.proj.weight": (size, 3, config["patch_size"], config["patch_size"]),
        "vision_tower.patch_embed.proj.bias": (size,),
        "vision_tower.patch_embed.pos_emb.weight": (side, side, size),
        f"{block}.{{norm0,norm1}}.{{weight,bias}}": (size,),
        f"{block}.wqkv.weight": (3 * size, size),
        f"{block}.wqkv.bias": (3 * size,),
        f"{block}.wo.weight": (size, size),
        f"{block}.wo.bias": (size,),
        f"{block}.mlp.fc0.weight": (inner, size),
        f"{block}.mlp.fc0.bias": (inner,),
        f"{block}.mlp.fc1.weight": (size, inner),
        f"{block}.mlp.fc1.bias": (size,),
        "vision_tower.encoder.final_layernorm.{weight,bias}": (size,),
        "mm_projector.pre_norm.{weight,bias}": (size,),
        "mm_projector.proj.0.weight": (4 * size, 4 * size),
        "mm_projector.proj.0.bias": (4 * size,),
        "mm_projector.proj.2.weight": (hidden, 4 * size),
        "mm_projector.proj.2.bias": (hidden,),
    }


LATENT: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 160, "moe_intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8, "num_experts_per_tok": 3,
}  # fmt: skip
SIGHT: dict[str, Any] = {
    "init_pos_emb_height": 8, "init_pos_emb_time": 4, "init_pos_emb_width": 8, "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool", "mm_hidden_size": 32, "mm_projector_type": "patchmerger", "patch_size": 14,
    "pos_emb_type": "divided_fixed", "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05, "text_hidden_size": 96,
    "video_attn_type": "spatial_temporal", "vt_hidden_size": 32, "vt_intermediate_size": 48,
    "vt_num_attention_heads": 2, "vt_num_hidden_layers": 2,
}  # fmt: skip
FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.embed_tokens", "indexers_proj"],
}  # fmt: skip
PROJECTIONS = r".*\.(?!eh_)\w+(?<!weights)_proj\.weight|.*\.indexer\.(wq_b|wk)\.weight"


def kimi_k25(**changes: int) -> Maker:
    """Kimi-K2.5: a language model beside a vision tower, its routed experts in INT4. `changes` are other sizes."""
    whole = read("kimi-k2.5").config
    text = {**whole["text_config"], **LATENT, **changes}
    layers, sight = text["num_hidden_layers"], {**SIGHT, "text_hidden_size": text["hidden_size"]}
    return Maker(
        config=text,
        shapes={**_frame(text, layers), **_latent(text, layers), **_feeds(text, layers)},
        quantised=r".*\.experts\..*",
        outer={**whole, "vision_config": sight},
        prefix="language_model.",
        others=_vision(sight, text["hidden_size"]),
        tokenizer=write_kimi_tokenizer,
        eos=("[EOS]",),  # the other, which ends a turn, is in the generation configuration only
        generation_eos=("<|im_end|>",),
    )


def kimi_k2_thinking() -> Maker:
    """Kimi-K2-Thinking: the language model of Kimi-K2.5 by itself, with a template."""
    maker = kimi_k25()
    template = "{#- <|im_middle|> <|tool_calls_section_begin|> <think> -#}"

    def tokenizer(folder: Path) -> dict[str, int]:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return write_kimi_tokenizer(folder)

    return replace(maker, outer=None, prefix="", others={}, tokenizer=tokenizer)


def kimi_k2() -> Maker:
    """Kimi-K2-Instruct: in FP8 blocks of 128, of which most matrices here are the edge."""
    published = read("kimi-k2.5").config["text_config"]
    text = {**published, **LATENT, "hidden_size": 160, "intermediate_size": 300, "rms_norm_eps": 1e-6}
    text |= {"rope_scaling": {**published["rope_scaling"], "factor": 32.0, "beta_fast": 1.0}}
    text |= {"quantization_config": {**FP8, "modules_to_not_convert": None}}
    shapes = {**_frame(text, 3), **_latent(text, 3), **_feeds(text, 3)}
    shapes["model.layers.{0..2}.self_attn.rotary_emb.inv_freq"] = (4,)  # a table that this checkpoint stores
    return Maker(
        config=text,
        shapes=shapes,
        quantised=PROJECTIONS,
        quantise=float8_blocks((128, 128)),
        tokenizer=write_kimi_tokenizer,
        eos=("[EOS]",),
        generation_eos=("<|im_end|>",),
    )


def kimi_linear() -> Maker:
    """Kimi-Linear: layers with a state among latent ones; an expert's matrices are w1, w2 and w3, and here quantised as
    in Kimi-K2.5, though the maker published BF16."""
    linear = {
        "full_attn_layers": [3, 5], "kda_layers": [1, 2, 4], "head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4
    }  # fmt: skip
    config = {
        **read("kimi-linear").config, "hidden_size": 96, "intermediate_size": 160, "moe_intermediate_size": 64,
        "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 20,
        "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "num_experts": 8, "num_experts_per_token": 3,
        "model_max_length": 32768, "linear_attn_config": linear,
        "quantization_config": read("kimi-k2.5").config["text_config"]["quantization_config"],
    }  # fmt: skip
    hidden, inner, width, size = 96, 64, 3 * 16, 16
    delta, latent, sparse = (
        f"model.layers.{{{layers}}}.{part}"
        for layers, part in (("0,1,3", "self_attn"), ("2,4", "self_attn"), ("1..4", "block_sparse_moe"))
    )
    shapes: Shapes = {
        **_frame(config, 5),
        f"{delta}.{{q,k,v}}_proj.weight": (width, hidden),
        f"{delta}.{{q,k,v}}_conv1d.weight": (width, 1, 4),
        f"{delta}.A_log": (1, 1, 3, 1),
        f"{delta}.dt_bias": (width,),
        f"{delta}.{{f,g}}_a_proj.weight": (size, hidden),
        f"{delta}.{{f,g}}_b_proj.weight": (width, size),
        f"{delta}.b_proj.weight": (3, hidden),
        f"{delta}.o_norm.weight": (size,),
        f"{delta}.o_proj.weight": (hidden, width),
        f"{latent}.q_proj.weight": (4 * (12 + 8), hidden),
        f"{latent}.kv_a_proj_with_mqa.weight": (20 + 8, hidden),
        f"{latent}.kv_a_layernorm.weight": (20,),
        f"{latent}.kv_b_proj.weight": (4 * (12 + 10), 20),
        f"{latent}.o_proj.weight": (hidden, 4 * 10),
        "model.layers.0.mlp.{gate,up}_proj.weight": (160, hidden),
        "model.layers.0.mlp.down_proj.weight": (hidden, 160),
        f"{sparse}.gate.weight": (8, hidden),
        f"{sparse}.gate.e_score_correction_bias": (8,),
        f"{sparse}.shared_experts.{{gate,up}}_proj.weight": (inner, hidden),
        f"{sparse}.shared_experts.down_proj.weight": (hidden, inner),
        f"{sparse}.experts.{{0..7}}.{{w1,w3}}.weight": (inner, hidden),
        f"{sparse}.experts.{{0..7}}.w2.weight": (hidden, inner),
    }
    return Maker(
        config=config,
        shapes=shapes,
        quantised=r".*\.experts\..*",
        tokenizer=write_kimi_tokenizer,
        eos=("<|im_end|>",),
        generation_eos=("<|im_end|>", "[EOS]"),
    )


def glm_45(ahead: int = 1) -> Maker:
    """GLM-4.5-FP8: grouped queries with biases and norms, a scale per row, one layer that predicts ahead, or more."""
    config = {
        "architectures": ["Glm4MoeForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "head_dim": 32,
        "hidden_act": "silu", "hidden_size": 160, "partial_rotary_factor": 0.5, "initializer_range": 0.02,
        "intermediate_size": 300, "max_position_embeddings": 131072, "model_type": "glm4_moe",
        "moe_intermediate_size": 72, "norm_topk_prob": True, "num_attention_heads": 6, "n_group": 1, "topk_group": 1,
        "n_routed_experts": 8, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 1000000, "num_nextn_predict_layers": ahead, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.54.0", "use_cache": True, "use_qk_norm": True,
        "quantization_config": compressed_tensors(
            "float-quantized", DYNAMIC, num_bits=8, type="float", strategy="channel", group_size=None
        ),
    }  # fmt: skip
    return Maker(
        config=config,
        shapes={
            **_frame(config, 3 + ahead),
            **_grouped(config, 3 + ahead),
            **_feeds(config, 3 + ahead),
            **_ahead(config, 3, ahead, own=True),
        },
        quantised=PROJECTIONS,
        quantise=float8_rows,
        tokenizer=lambda folder: write_glm_tokenizer(folder, "{#- [gMASK]<sop> <arg_key> /nothink -#}"),
        eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
        generation_eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
    )


def glm_45_air() -> Maker:
    """GLM-4.5-Air: the same without norms on queries and keys, in BF16."""
    maker = glm_45()
    config = {key: value for key, value in maker.config.items() if key != "quantization_config"}
    config |= {"use_qk_norm": False, "routed_scaling_factor": 1.0}
    shapes = {pattern: shape for pattern, shape in maker.shapes.items() if "{q,k}_norm" not in pattern}
    return replace(maker, config=config, shapes=shapes, quantised="none")


def glm_4_9b() -> Maker:
    """GLM-4-9B-0414: dense, gate and up in one matrix, norms on what is added, in BF16."""
    config: dict[str, Any] = {
        "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "head_dim": 32,
        "hidden_act": "silu", "hidden_size": 160, "initializer_range": 0.02, "intermediate_size": 300,
        "max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 6, "num_hidden_layers": 3,
        "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0",
        "use_cache": True,
    }  # fmt: skip
    hidden, inner, name = config["hidden_size"], config["intermediate_size"], "model.layers.{0..2}"
    attention = {key: shape for key, shape in _grouped(config, 3).items() if "{q,k}_norm" not in key}
    return Maker(
        config=config,
        shapes={
            **_frame(config, 3),
            **attention,
            f"{name}.{{post_self_attn,post_mlp}}_layernorm.weight": (hidden,),
            f"{name}.mlp.gate_up_proj.weight": (2 * inner, hidden),
            f"{name}.mlp.down_proj.weight": (hidden, inner),
        },
        tokenizer=lambda folder: write_glm_tokenizer(folder, "{{ messages }}"),
        eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
        generation_eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
    )


def glm_47_flash() -> Maker:
    """GLM-4.7-Flash: latent attention with wide values, in BF16, one layer that predicts ahead."""
    config: dict[str, Any] = {
        **LATENT, "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 112, "v_head_dim": 24, "max_position_embeddings": 202752,
        "model_type": "glm4_moe_lite", "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "routed_scaling_factor": 1.8, "topk_method": "noaux_tc", "first_k_dense_replace": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip
    return Maker(
        config=config,
        shapes={
            **_frame(config, 4),
            **_latent(config, 4),
            **_feeds(config, 4),
            **_ahead(config, 3, 1, own=True),
        },
        tokenizer=lambda folder: write_glm_tokenizer(folder, "{#- [gMASK]<sop> <arg_key> clear_thinking -#}"),
        eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
        generation_eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
    )


def glm_5(shared: bool = True) -> Maker:
    """GLM-5.3-FP8: an indexer in layers 0, 1, 2 and 6 and in the one that predicts ahead; the rest share choices. Not
    `shared`, GLM-5-FP8: an indexer in every layer."""
    config: dict[str, Any] = {
        **read("glm-5").config, **LATENT, "hidden_size": 160, "intermediate_size": 300, "num_hidden_layers": 7,
        "qk_head_dim": 20, "head_dim": 8, "v_head_dim": 18, "first_k_dense_replace": 3, "index_n_heads": 16,
        "index_head_dim": 24, "index_topk": 32, "quantization_config": FP8,
    }  # fmt: skip
    if shared:
        config |= {"index_topk_freq": 4, "index_skip_topk_offset": 3, "index_share_for_mtp_iteration": True}
        config |= {"max_position_embeddings": 1048576}
    return Maker(
        config=config,
        shapes={
            **_frame(config, 8),
            **_latent(config, 8),
            **_feeds(config, 8),
            **_indexer(config, "0,1,2,6,7" if shared else "0..7"),
            **_ahead(config, 7, 1, own=False),
        },
        quantised=PROJECTIONS,
        quantise=float8_blocks((128, 128)),
        tokenizer=write_glm_tokenizer,
        eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
        generation_eos=("<|endoftext|>", "<|user|>", "<|observation|>"),
    )
