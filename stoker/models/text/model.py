"""The text side of one model: conversations and texts to token ids, and back. No torch, safe for several threads.

The library's `encode` holds the interpreter lock for as long as it takes, a second for a long prompt; its batch form
does not, so that is what is called even for one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Metaspace

from stoker.models.gguf_meta import read_metadata
from stoker.models.info import end_ids
from stoker.models.source import ModelError, ModelFiles, read_json
from stoker.models.text.control import ControlTokens, is_control
from stoker.models.text.conversation import variables
from stoker.models.text.detokenizer import Detokenizer, Pieces, detokenizer
from stoker.models.text.gguf_tokenizer import from_metadata, special_texts
from stoker.models.text.template import ChatTemplate, read_templates
from stoker.types.chat import ChatRequest
from stoker.types.errors import invalid

_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TextModel:
    """`vocab_size` is one more than the largest id the tokenizer knows; the model's own may be padded beyond it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        templates: dict[str, str],
        specials: dict[str, str],
        eos: Iterable[int],
        where: str,
    ) -> None:
        """Raises ModelError when the tokenizer or a template is of a kind that is not supported."""
        added = tokenizer.get_added_tokens_decoder()
        self.eos_ids = frozenset(eos)
        self.vocab_size = max(tokenizer.get_vocab_size(with_added_tokens=False), *(index + 1 for index in added), 0)
        self._tokenizer = tokenizer
        self._pieces = Pieces(tokenizer)
        self._specials = specials
        self._templates = {name: ChatTemplate(source, where) for name, source in templates.items()}
        literals = {literal for template in self._templates.values() for literal in template.literals}
        self._control = ControlTokens(added, literals | set(specials.values()))
        self._ordinary = _without_control(tokenizer, where)
        self._inner = _after_start(self._ordinary)

    @classmethod
    def load(cls, files: ModelFiles) -> TextModel:
        """Raises ModelError when the files hold no tokenizer or template that can be used."""
        eos = end_ids(files)
        if files.gguf is not None:
            metadata = read_metadata(Path(files.gguf)).metadata
            tokenizer = from_metadata(metadata, files.gguf)
            prefix = "tokenizer.chat_template"
            templates = {
                key.removeprefix(prefix).removeprefix(".") or "default": value
                for key, value in metadata.items()
                if (key == prefix or key.startswith(prefix + ".")) and isinstance(value, str)
            }
            return cls(tokenizer, templates=templates, specials=special_texts(metadata), eos=eos, where=files.gguf)
        root = Path(files.root)
        try:
            tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
        except Exception as error:  # the binding raises bare Exceptions
            raise ModelError(f"{root / 'tokenizer.json'} cannot be used: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer, templates=read_templates(root), specials=_specials(root), eos=eos, where=files.root)

    def render(self, request: ChatRequest) -> list[int]:
        """The conversation as the model's template writes it, ready for the answer.

        Only what the template writes can become a control token; everything from the client is ordinary text. Raises
        StokerError (INVALID) when there is no template or it refuses the conversation.
        """
        template = self._templates.get("tool_use") if request.tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise invalid("no_chat_template", "this model has no chat template: use /v1/completions", param="messages")
        given: dict[str, Any] = variables(request, template.source, self._control.guard)
        parts = self._control.split(template.render({**given, **self._specials}))
        texts = [part for part in parts if isinstance(part, str)]
        encoded = iter(self._encode_ordinary(texts, at_start=bool(parts) and isinstance(parts[0], str)))
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += next(encoded)
        return ids

    def encode(self, text: str) -> list[int]:
        """A raw prompt: special tokens in it are recognised, and what the tokenizer itself adds (BOS) is added."""
        return self._tokenizer.encode_batch_fast([text])[0].ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, perhaps a part of a character; b"" for ids outside the vocabulary."""
        return self._pieces.bytes(token_id)

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """For one output; `skip_special` leaves special tokens out of the text."""
        return detokenizer(self._pieces, skip_special=skip_special)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        whole = self.detokenizer(skip_special=False)
        return whole.push(ids) + whole.finish()

    def _encode_ordinary(self, texts: list[str], *, at_start: bool) -> list[list[int]]:
        head = self._ordinary.encode_batch_fast(texts[:1] if at_start else [], add_special_tokens=False)
        rest = self._inner.encode_batch_fast(texts[1:] if at_start else texts, add_special_tokens=False)
        return [self._spelled(encoding.ids) for encoding in (*head, *rest)]

    def _spelled(self, ids: list[int]) -> list[int]:
        """A vocabulary may hold a control token's text as a word of its own: that is then spelled out."""
        if self._control.texts.keys().isdisjoint(ids):
            return ids
        spelled: list[int] = []
        for index in ids:
            if index in self._control.texts:
                letters = self._inner.encode_batch_fast(list(self._control.texts[index]), add_special_tokens=False)
                spelled += (letter for encoding in letters for letter in encoding.ids)
            else:
                spelled.append(index)
        return spelled


def _without_control(tokenizer: Tokenizer, where: str) -> Tokenizer:
    """The same tokenizer, sharing its vocabulary, that knows no control tokens."""
    ordinary = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        ordinary.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        ordinary.pre_tokenizer = tokenizer.pre_tokenizer
    for index, token in sorted(tokenizer.get_added_tokens_decoder().items()):
        if not is_control(token):
            ordinary.add_tokens([token])
            if ordinary.token_to_id(token.content) != index:
                raise ModelError(f"{where}: the added token {token.content!r} is not in the vocabulary proper")
    return ordinary


def _after_start(ordinary: Tokenizer) -> Tokenizer:
    """For texts that follow a control token: a tokenizer that puts a space in front of the first word only must not
    put one there."""
    spaces = ordinary.pre_tokenizer
    if not isinstance(spaces, Metaspace) or spaces.prepend_scheme != "first":
        return ordinary
    inner = Tokenizer(ordinary.model)
    if ordinary.normalizer is not None:
        inner.normalizer = ordinary.normalizer
    inner.pre_tokenizer = Metaspace(replacement=spaces.replacement, prepend_scheme="never", split=spaces.split)
    return inner


def _specials(root: Path) -> dict[str, str]:
    """`bos_token` and its like as templates know them."""
    path = root / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    found: dict[str, str] = {}
    for key in _SPECIAL_KEYS:
        match config.get(key):
            case str(text) | {"content": str(text)}:
                found[key] = text
            case _:
                pass
    return found
