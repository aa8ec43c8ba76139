"""A model that knows a few sentences by rote: real weights, written down instead of trained, for prompts of any length.

An agent's tool loop needs a model that makes a certain call, and the demo model is neither clever enough for it nor has
it room for the prompts of the larger agents. This one is a llama of one layer whose weights spell out a table "after
these tokens comes that one":

- the embedding of a token is a random unit vector and a constant;
- attention head h looks back exactly h tokens: queries and keys are constants, and the rotation of positions makes
  their product largest at that distance; so each position holds its last `REACH` tokens side by side;
- each neuron of the feed-forward part is one line of the table: it fires when all tokens of the line are there, and
  adds the vector of the token that comes next; longer lines speak louder;
- the head compares with the same random vectors. Where no line fires, the answer ends.

What it says is fixed by its table; how it is computed, cached, constrained and sampled is all the engine's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from stoker.models.gguf_meta import read_metadata
from stoker.models.source import resolve
from stoker.models.text.gguf_tokenizer import from_metadata

REACH = 8  # tokens that a line can look back
SIZE = 64  # dimensions of a token's vector, and of a head
CONTEXT = 131_072
END = "<|im_end|>"

_SHARPNESS = 20.0  # of attention: the next best distance weighs e^-20 or less
_STEEPNESS = 80.0  # of a neuron
_MARGIN = 0.25  # by how much the tokens of a line may fall short of their number
_THETA = 10_000.0

Line = tuple[tuple[int, ...], int]


class RoteError(ValueError):
    """The sentences contradict each other within the reach of the model; the message says where."""


def table_of(lessons: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Line]:
    """(what stands before, what is said then), as token ids -> lines. Raises RoteError where two lessons go on
    differently after the same tokens."""
    table: dict[tuple[int, ...], int] = {}
    for before, said in lessons:
        whole = [*before, *said]
        for at in range(len(before), len(whole)):
            seen = tuple(whole[max(0, at - REACH) : at])
            if table.setdefault(seen, whole[at]) != whole[at]:
                raise RoteError(f"after the tokens {seen} come both {table[seen]} and {whole[at]}")
    return list(table.items())


def weights_of(lines: Sequence[Line], vocab_size: int, end: int) -> dict[str, torch.Tensor]:
    """The checkpoint of a llama with one layer, float32. Hidden: `REACH` vectors, the next token's vector, a one."""
    random = torch.Generator().manual_seed(1)
    vectors = torch.nn.functional.normalize(torch.randn(vocab_size, SIZE, generator=random), dim=1)
    heads, width = REACH - 1, (REACH + 1) * SIZE + 1
    following, one = slice(REACH * SIZE, (REACH + 1) * SIZE), width - 1
    loudness = math.sqrt(width)  # an RMS norm leaves vectors of this length

    embedding = torch.zeros(vocab_size, width)
    embedding[:, :SIZE] = vectors
    embedding[:, one] = 1.0
    before_attention = loudness / math.sqrt(2)  # what the norm makes of the token's unit vector, and of the one
    before_lines = loudness / math.sqrt(REACH + 1)

    angles = _THETA ** -(torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
    query = torch.zeros(heads * SIZE, width)
    strength = _SHARPNESS * math.sqrt(SIZE) / before_attention
    for head in range(heads):
        turned = angles * (head + 1)
        query[head * SIZE : (head + 1) * SIZE, one] = strength * torch.cat((turned.cos(), -turned.sin())).float()
    key = torch.zeros(SIZE, width)
    key[: SIZE // 2, one] = 1 / before_attention
    value = torch.zeros(SIZE, width)
    value[:, :SIZE] = torch.eye(SIZE) / before_attention
    output = torch.zeros(width, heads * SIZE)
    output[SIZE : REACH * SIZE] = torch.eye(heads * SIZE)

    gate, up, down = (torch.zeros(shape) for shape in ((len(lines), width), (len(lines), width), (width, len(lines))))
    for neuron, (seen, comes) in enumerate(lines):
        for back, token in enumerate(reversed(seen)):
            gate[neuron, back * SIZE : (back + 1) * SIZE] = _STEEPNESS * vectors[token] / before_lines
        gate[neuron, one] = -_STEEPNESS * (len(seen) - _MARGIN) / before_lines
        up[neuron, one] = 1 / before_lines
        down[following, neuron] = 10.0 ** len(seen) * vectors[comes] / (_STEEPNESS * _MARGIN)
    head = torch.zeros(vocab_size, width)
    head[:, following] = 4 * vectors
    head[end, one] = 4.0
    ones = torch.ones(width)
    layer = "model.layers.0"
    return {
        "model.embed_tokens.weight": embedding,
        f"{layer}.input_layernorm.weight": ones,
        f"{layer}.self_attn.q_proj.weight": query,
        f"{layer}.self_attn.k_proj.weight": key,
        f"{layer}.self_attn.v_proj.weight": value,
        f"{layer}.self_attn.o_proj.weight": output,
        f"{layer}.post_attention_layernorm.weight": ones.clone(),
        f"{layer}.mlp.gate_proj.weight": gate,
        f"{layer}.mlp.up_proj.weight": up,
        f"{layer}.mlp.down_proj.weight": down,
        "model.norm.weight": ones.clone(),
        "lm_head.weight": head,
    }


def write_model(folder: Path, lessons: Sequence[tuple[str, str]]) -> None:
    """A model folder for `stoker serve --model`: after each first text comes the second one, then the end of the
    answer. Tokenizer and chat template are the demo model's. Raises RoteError."""
    files = resolve("demo", revision=None, data_dir=folder, progress=lambda stage, fraction: None)
    assert files.gguf is not None
    metadata = read_metadata(Path(files.gguf)).metadata
    tokenizer = from_metadata(metadata, files.gguf)
    end = tokenizer.token_to_id(END)
    assert end is not None
    lines = table_of(
        [
            (tokenizer.encode(before, add_special_tokens=False).ids, [*tokenizer.encode(said).ids, end])
            for before, said in lessons
        ]
    )
    vocab_size = tokenizer.get_vocab_size()
    weights = weights_of(lines, vocab_size, end)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "hidden_size": weights["model.norm.weight"].shape[0],
        "intermediate_size": len(lines),
        "num_hidden_layers": 1,
        "num_attention_heads": REACH - 1,
        "num_key_value_heads": 1,
        "head_dim": SIZE,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-9,
        "rope_theta": _THETA,
        "tie_word_embeddings": False,
        "eos_token_id": end,
    }
    texts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "chat_template": metadata["tokenizer.chat_template"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(texts, indent=1), encoding="utf-8")
