"""The text side as a whole: the same ids as transformers, safe in threads, without torch, without the lock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from stoker.models.gguf_meta import read_metadata
from stoker.models.source import ModelError, ModelFiles
from stoker.models.text.control import JOINT
from stoker.models.text.model import TextModel
from stoker.models.text.vocabulary import LibraryVocabulary
from stoker.types.chat import ChatRequest, Message, Tool, ToolCall
from stoker.types.errors import ErrorKind, StokerError

CONTENTS = [
    "Hello there, how are you?",
    "",
    "  two  spaces,\ttabs\n\n\nand lines  \r\n",
    "12345 3.14159 1,000,000 ½ ٣",
    "def f(x: int) -> str:\n    return f'{x!r}' if x < 3 and x > -1 else \"<a href='#'>\"  # ok | not",
    "日本語、中文。한국어 العربية हिन्दी Ελληνικά",
    "😀👩‍👩‍👧‍👦 e\u0301 \u200b\ufeff",
    "> quoted <b>bold</b> | pipe < less",
    "x" * 3000,
]


def user(content: str) -> ChatRequest:
    return ChatRequest(model="m", messages=(Message(role="user", content=content),))


@pytest.fixture(scope="module")
def demo_reference(demo_files: ModelFiles, demo_text: TextModel) -> Any:
    """transformers around the same vocabulary, with the file's own chat template."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast

        template = read_metadata(Path(str(demo_files.gguf))).metadata["tokenizer.chat_template"]
        return PreTrainedTokenizerFast(tokenizer_object=demo_text.vocabulary.tokenizer, chat_template=template)


@pytest.fixture(scope="module")
def tiny_reference(tiny_llama: ModelFiles) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(tiny_llama.root)


def templated(reference: Any, messages: list[dict[str, Any]], **given: Any) -> list[int]:
    return reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **given)


@pytest.mark.parametrize("content", CONTENTS)
def test_demo_prompts_are_transformers_prompts(demo_text: TextModel, demo_reference: Any, content: str) -> None:
    assert demo_text.render(user(content)) == templated(demo_reference, [{"role": "user", "content": content}])
    assert demo_text.encode(content) == demo_reference(content)["input_ids"]
    history = [(role, content) for role in ("system", "user", "assistant", "user")]
    request = ChatRequest(model="m", messages=tuple(Message(role=role, content=text) for role, text in history))
    expected = templated(demo_reference, [{"role": role, "content": text} for role, text in history])
    assert demo_text.render(request) == expected


@pytest.mark.parametrize("content", CONTENTS)
def test_tool_conversations_are_transformers_prompts(tiny_text: TextModel, tiny_reference: Any, content: str) -> None:
    arguments = {"q": content, "n": 3, "deep": [{"k": None}]}
    parameters = {"type": "object", "properties": {"q": {"type": "string", "description": content}}}
    request = ChatRequest(
        model="m",
        messages=(
            Message(role="system", content=content),
            Message(role="user", content=content, name="bob"),
            Message(
                role="assistant",
                content=content,
                reasoning="because",
                tool_calls=(ToolCall(id="call_1", name="find", arguments=json.dumps(arguments)),),
            ),
            Message(role="tool", content=content, tool_call_id="call_1"),
        ),
        tools=(Tool(name="find", description=content, parameters=parameters),),
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    expected = templated(
        tiny_reference,
        [
            {"role": "system", "content": content},
            {"role": "user", "content": content, "name": "bob"},
            {"role": "assistant", "content": content, "reasoning_content": "because", "tool_calls": [call]},
            {"role": "tool", "content": content, "tool_call_id": "call_1"},
        ],
        tools=[{"type": "function", "function": {"name": "find", "description": content, "parameters": parameters}}],
    )
    assert tiny_text.render(request) == expected


@settings(max_examples=200, deadline=None)
@given(content=st.text(st.characters(exclude_characters=JOINT, exclude_categories=["Cs"]), max_size=80))
def test_any_clean_text(demo_text: TextModel, demo_reference: Any, content: str) -> None:
    assume(not any(token.content in content for token in demo_text.vocabulary.added.values()))  # strategies know them
    expected = templated(demo_reference, [{"role": "user", "content": content}])
    assert demo_text.render(user(content)) == expected


def test_raw_prompts_do_know_special_tokens(demo_text: TextModel) -> None:
    assert demo_text.encode("<|im_start|>user\nhi<|im_end|>")[0] == 1
    assert demo_text.decode(demo_text.encode("<|im_start|>a<|im_end|>")) == "<|im_start|>a<|im_end|>"
    assert demo_text.eos_ids == {2}
    assert demo_text.vocab_size == 49152


def test_special_tokens_can_be_left_out(demo_text: TextModel) -> None:
    ids = demo_text.encode("a<|im_end|>b")
    hidden, shown = demo_text.detokenizer(), demo_text.detokenizer(skip_special=False)
    assert hidden.push(ids) + hidden.finish() == "ab"
    assert shown.push(ids) + shown.finish() == "a<|im_end|>b"


def test_the_prompt_of_a_turn_begins_the_next_one(demo_text: TextModel) -> None:
    """What is cached of one turn serves the next."""
    first = (Message(role="user", content="one"),)
    second = (*first, Message(role="assistant", content="two"), Message(role="user", content="three"))
    start = demo_text.render(ChatRequest(model="m", messages=first))
    assert demo_text.render(ChatRequest(model="m", messages=second))[: len(start)] == start


def test_sentence_piece_prefix_space(tiny_llama: ModelFiles) -> None:
    """A tokenizer that marks the first word only, by pre-tokenizer, marks none after a control token."""
    letters = {letter: index for index, letter in enumerate("\u2581abc")}
    tokenizer = Tokenizer(BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    space = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(space)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<s>", special=True, normalized=False)])
    for source in ("{{ messages[0].content }}<s>{{ messages[0].content }}", "<s>a{{ messages[0].content }}"):
        model = TextModel(
            LibraryVocabulary(tokenizer, "test"), templates={"default": source}, specials={}, eos=(), where="test"
        )
        text = source.replace("{{ messages[0].content }}", "ab c")
        assert model.render(user("ab c")) == tokenizer.encode(text, add_special_tokens=False).ids


def test_white_space_tokens_stay_shorthands(tiny_llama: ModelFiles) -> None:
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=letters | {"\n\n": 256}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    template = {"default": "{{ messages[0].content }}"}
    model = TextModel(LibraryVocabulary(tokenizer, "test"), templates=template, specials={}, eos=(), where="test")
    assert 256 in model.render(user("a\n\nb"))
    outside = Tokenizer.from_str(tokenizer.to_str())
    outside.add_tokens([AddedToken("<x>", normalized=False), AddedToken("\t\t", normalized=False)])
    with pytest.raises(ModelError, match="not in the vocabulary proper"):
        TextModel(LibraryVocabulary(outside, "test"), templates=template, specials={}, eos=(), where="test")


def test_template_errors_name_their_cause(demo_text: TextModel, demo_files: ModelFiles) -> None:
    tokenizer = demo_text.vocabulary.tokenizer
    for templates, code in (
        ({}, "no_chat_template"),
        ({"default": "{{ raise_exception('only one') }}"}, "chat_template_error"),
    ):
        model = TextModel(LibraryVocabulary(tokenizer, "test"), templates=templates, specials={}, eos=(), where="test")
        with pytest.raises(StokerError) as caught:
            model.render(user("hi"))
        assert (caught.value.kind, caught.value.code) == (ErrorKind.INVALID, code)


def test_tools_may_have_a_template_of_their_own(demo_text: TextModel) -> None:
    templates = {"default": "plain", "tool_use": "tools"}
    model = TextModel(
        LibraryVocabulary(demo_text.vocabulary.tokenizer, "test"),
        templates=templates,
        specials={},
        eos=(),
        where="test",
    )
    with_tools = ChatRequest(model="m", messages=user("x").messages, tools=(Tool(name="f"),))
    assert model.decode(model.render(user("x"))) == "plain"
    assert model.decode(model.render(with_tools)) == "tools"


@pytest.mark.parametrize(
    ("file", "content"),
    [("tokenizer.json", "{}"), ("tokenizer.json", "not json"), ("tokenizer_config.json", "["), ("config.json", "3")],
)
def test_damaged_files_are_named(tiny_llama: ModelFiles, tmp_path: Path, file: str, content: str) -> None:
    root = tmp_path / "model"
    shutil.copytree(tiny_llama.root, root)
    (root / file).write_text(content)
    with pytest.raises(ModelError, match=file.replace(".", r"\.")):
        TextModel.load(ModelFiles(name="x", root=str(root), gguf=None))


def test_threads_do_not_disturb_each_other(demo_text: TextModel) -> None:
    requests = [user(f"{text} {number}") for number, text in enumerate(CONTENTS * 4)]
    alone = [demo_text.render(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(demo_text.render, requests)) == alone


def test_long_prompts_do_not_hold_the_interpreter(demo_text: TextModel) -> None:
    """While a long text is encoded on one thread, another one runs: it never stands still for most of the time."""
    text = "The quick brown fox jumps over the lazy dog. " * 20_000
    done = threading.Event()
    gaps: list[float] = []

    def tick() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.perf_counter()
    demo_text.encode(text)
    demo_text.render(user(text))
    took = time.perf_counter() - began
    done.set()
    ticker.join()
    assert max(gaps) < took / 2


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = """
import sys
from pathlib import Path
from stoker.models.info import read_info
from stoker.models.source import resolve
from stoker.models.text.control import JOINT
from stoker.models.text.model import TextModel
from stoker.types.chat import ChatRequest, Message
files = resolve("demo", revision=None, data_dir=Path("unused"), progress=print)
text = TextModel.load(files)
assert read_info(files).vocab_size == text.vocab_size
assert text.decode(text.render(ChatRequest(model="m", messages=(Message(role="user", content="hi"),))))
print([name for name in ("torch", "transformers", "numpy", "gguf", "huggingface_hub") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
