"""Text models of the families with built-in renderers: Kimi's own tokenizer, and for GLM, whose vocabulary is not at
hand, a byte-level one with the same control tokens."""

from __future__ import annotations

from functools import cache

import pytest
from shared_data import SHARED
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from stoker.models.text.family import Family
from stoker.models.text.model import TextModel
from stoker.models.text.tiktoken_vocabulary import TiktokenVocabulary
from stoker.models.text.vocabulary import LibraryVocabulary, Vocabulary

BUILT_IN = tuple(Family)[: tuple(Family).index(Family.GLM53_FLASH) + 1]
KIMI_FOLDER = SHARED / "conformance" / "kimi_tokenizer"
GLM_TOKENS = [
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|video|>",
    "<|end_of_video|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
]


@cache
def kimi_vocabulary() -> TiktokenVocabulary:
    if not KIMI_FOLDER.is_dir():
        pytest.skip(f"no shared data at {KIMI_FOLDER}")
    return TiktokenVocabulary(KIMI_FOLDER)


@cache
def glm_vocabulary() -> LibraryVocabulary:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=text.startswith("<|"), normalized=False) for text in GLM_TOKENS])
    return LibraryVocabulary(tokenizer, "test")


@cache
def text_model(family: Family) -> TextModel:
    vocabulary: Vocabulary = kimi_vocabulary() if family.startswith("kimi_") else glm_vocabulary()
    return TextModel(vocabulary, templates={}, specials={}, eos=(), where="test", family=family)
