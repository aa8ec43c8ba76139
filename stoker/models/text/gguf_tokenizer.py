"""A tokenizer from the metadata of a GGUF file. Only byte-level BPE with a known way to split words: a guess would
give other tokens than the model was trained on, without any error.

The word patterns are those the models' own tokenizers were trained with, published with each family. A converted copy
is not cached: building from the metadata takes less time than reading a tokenizer.json.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import TemplateProcessing

from stoker.models.source import ModelError

_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def from_metadata(metadata: dict[str, Any], where: str) -> Tokenizer:
    """`where` names the file in errors. Raises ModelError."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"{where} has a tokenizer of type {kind!r}: of GGUF files only byte-level BPE (gpt2) is read")
    tokens, merges = (_strings(metadata, f"tokenizer.ggml.{key}", where) for key in ("tokens", "merges"))
    types = metadata.get("tokenizer.ggml.token_type") or []
    family = metadata.get("tokenizer.ggml.pre")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        model = BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=pairs,
            ignore_merges=family == "llama-bpe",
        )
    except Exception as error:  # the binding raises bare Exceptions
        raise ModelError(f"{where} has a tokenizer whose merges and tokens do not fit: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _splitter(family, where)
    tokenizer.decoder = ByteLevelDecoder()
    if family == "qwen2":
        tokenizer.normalizer = NFC()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=False)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    begin = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token", family == "llama-bpe") and isinstance(begin, int):
        text = tokenizer.id_to_token(begin)
        tokenizer.post_processor = TemplateProcessing(single=f"{text} $A", special_tokens=[(text, begin)])
    return tokenizer


def special_texts(metadata: dict[str, Any]) -> dict[str, str]:
    """The names templates know special tokens by (`bos_token`, ...) -> their text."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {f"{name}_token": tokens[i] for name, i in found.items() if isinstance(i, int) and 0 <= i < len(tokens)}


def _strings(metadata: dict[str, Any], key: str, where: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ModelError(f"{where} has no {key} in its metadata")
    return value


def _splitter(family: object, where: str) -> PreTokenizer:
    bytes_only = ByteLevel(add_prefix_space=False, use_regex=False)
    match family:
        case "gpt-2":
            return ByteLevel(add_prefix_space=False)
        case "smollm":
            return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        case "llama-bpe":
            return Sequence([Split(Regex(_WORDS.format(digits=r"\p{N}{1,3}")), "isolated"), bytes_only])
        case "qwen2":
            return Sequence([Split(Regex(_WORDS.format(digits=r"\p{N}")), "isolated"), bytes_only])
        case _:
            raise ModelError(
                f"{where} splits words in a way called {family!r} that is not known here "
                "(known: gpt-2, smollm, llama-bpe, qwen2): use the model's folder with its tokenizer.json"
            )
