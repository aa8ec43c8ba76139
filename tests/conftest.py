"""Models that every room's tests may use. torch and transformers are imported inside fixtures only."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from stoker.models.source import ModelFiles, resolve
from stoker.models.text.model import TextModel

# The same examples on every run and machine; a machine that is busy is no failure.
settings.register_profile("stoker", derandomize=True, deadline=None)
settings.load_profile("stoker")

CHATML = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- if tools %}
    {{- '<|im_start|>tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + (' ' + message.name if message.name else '') }}
        {{- (' ' + message.tool_call_id if message.tool_call_id else '') + '\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>' + message.reasoning_content + '</think>' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>' + call.id + ' ' + call.function.name + ' ' + call.function.arguments | tojson }}
            {{- '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the lazy dog sleeps on through the afternoon.",
    "def add(left: int, right: int) -> int:\n    return left + right\n\n\nprint(add(19, 23))\n",
    "Große Wörter über Äpfel, naïve café, Ελληνικά, кириллица, 日本語のテキスト, 中文, العربية, 😀👩‍👩‍👧.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
    "system user assistant tool user assistant tool system the the the of and to in is that it was for",
]


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The demo model: a llama graph in GGUF, inside an installed package."""
    return resolve("demo", revision=None, data_dir=Path("unused"), progress=lambda stage, fraction: None)


@pytest.fixture(scope="session")
def demo_text(demo_files: ModelFiles) -> TextModel:
    """The demo model's text side."""
    return TextModel.load(demo_files)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A tiny llama checkpoint as transformers saves it, the same on every run.

    Every parameter is random (norms too), no two dimensions are equal, heads * head_dim != hidden, nothing is tied,
    float32. Its tokenizer is a small byte-level BPE with ChatML control tokens; `<think>` and `<tool_call>` and their
    ends are added tokens that are not special.
    """
    folder = tmp_path_factory.mktemp("tiny_llama")
    vocabulary = _write_tokenizer(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=1024,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=vocabulary["<|im_start|>"],
            eos_token_id=vocabulary["<|im_end|>"],
            dtype="float32",
        )
        model = LlamaForCausalLM(config)
        random = torch.Generator().manual_seed(20)
        with torch.no_grad():
            for name, parameter in sorted(model.named_parameters()):
                if parameter.ndim == 1:
                    parameter.uniform_(0.5, 1.5, generator=random)
                else:
                    scale = 1.0 if "embed_tokens" in name else parameter.shape[1] ** -0.5
                    parameter.normal_(0.0, 5 * scale if "lm_head" in name else scale, generator=random)
        model.generation_config = GenerationConfig(
            bos_token_id=vocabulary["<|im_start|>"],
            eos_token_id=[vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]],
            pad_token_id=vocabulary["<|endoftext|>"],
        )
        model.save_pretrained(folder, safe_serialization=True)
    return ModelFiles(name="tiny-llama", root=str(folder), gguf=None)


@pytest.fixture(scope="session")
def tiny_text(tiny_llama: ModelFiles) -> TextModel:
    """The tiny llama's text side."""
    return TextModel.load(tiny_llama)


def _write_tokenizer(folder: Path) -> dict[str, int]:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        min_frequency=1,
        show_progress=False,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(
        [
            AddedToken(text, special=False, normalized=False)
            for text in ("<think>", "</think>", "<tool_call>", "</tool_call>")
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return tokenizer.get_vocab()
