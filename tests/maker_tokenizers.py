"""Tokenizer files of the kinds that Kimi and GLM ship, with an alphabet of single bytes: a token per byte of text, and
the control tokens of the real ones."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# after the ranks, by their distance from the last; those without a name are reserved
KIMI_TOKENS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>", 17: "<|im_middle|>", 18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>",
    21: "<|media_pad|>", 22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]",
}  # fmt: skip
_KIMI_ORDINARY = {*range(11, 16), 22, 23}  # not special: they stay in the text
GLM_TOKENS = [
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<think>",
    "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "/nothink", "<|image|>", "<|video|>",
]  # fmt: skip


def write_kimi_tokenizer(folder: Path) -> dict[str, int]:
    """`tiktoken.model` and `tokenizer_config.json`; returns the ids of the named tokens."""
    ranks = 256
    lines = [b"%s %d" % (base64.b64encode(bytes([value])), value) for value in range(ranks)]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    added = {
        str(ranks + place): {"content": text, "special": place not in _KIMI_ORDINARY}
        for place, text in KIMI_TOKENS.items()
    }
    config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": [token["content"] for token in added.values() if token["special"]],
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return {text: ranks + place for place, text in KIMI_TOKENS.items()}


def write_glm_tokenizer(folder: Path, template: str | None = None) -> dict[str, int]:
    """`tokenizer.json`, `tokenizer_config.json`, and `chat_template.jinja` if there is one; returns the ids of the
    control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [not text.startswith(("<think", "</", "<tool", "<arg", "/")) for text in GLM_TOKENS]
    tokenizer.add_tokens(
        [AddedToken(text, special=kind, normalized=False) for text, kind in zip(GLM_TOKENS, special, strict=True)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return {text: len(alphabet) + index for index, text in enumerate(GLM_TOKENS)}
