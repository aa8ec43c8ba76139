"""The text side of one model: conversations and texts to token ids, and back. No torch, safe for several threads.

Puts together what others own: the vocabulary, the family's renderer or the model's own template, the detokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from stoker.models.gguf_meta import read_metadata
from stoker.models.info import end_ids
from stoker.models.source import ModelError, ModelFiles, read_json
from stoker.models.text.control import ControlTokens
from stoker.models.text.conversation import variables
from stoker.models.text.detokenizer import Detokenizer
from stoker.models.text.family import Family, detect_family
from stoker.models.text.gguf_tokenizer import from_metadata, special_texts
from stoker.models.text.memo import Memo, nothing_known
from stoker.models.text.parse.format import StartState
from stoker.models.text.renderers import IMAGE_TOKENS, RENDERERS, serve
from stoker.models.text.taught import knows_tools, teach
from stoker.models.text.template import ChatTemplate, read_templates
from stoker.models.text.vocabulary import LibraryVocabulary, Vocabulary, read_vocabulary
from stoker.models.vision.processor import ImageProcessor, read_processor
from stoker.types.chat import ChatRequest
from stoker.types.errors import invalid

_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TAIL = 8  # ids that hold a generation prompt's last tag and the white space after it
_KEEPS_REASONING = {"clear_thinking": False, "preserve_thinking": True}


class TextModel:
    """`vocab_size` is one more than the largest id the tokenizer knows; the model's own may be padded beyond it.

    `control_ids` are the tokens that a template may write and a client may not; `special_ids` those of them that are
    no part of the text of an answer. `processor` is how the model takes images, None if it takes none.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        templates: dict[str, str],
        specials: dict[str, str],
        eos: Iterable[int],
        where: str,
        family: Family = Family.PLAIN,
        processor: ImageProcessor | None = None,
    ) -> None:
        """The templates are not looked at where the family has a renderer. Raises ModelError when one is not valid."""
        self.family = family
        self.processor = processor
        self.eos_ids = frozenset(eos)
        self.vocabulary = vocabulary
        self.vocab_size = vocabulary.size
        self.special_ids = vocabulary.special
        self._memo = Memo()
        self._specials = specials
        self._templates = {
            name: ChatTemplate(source, where) for name, source in templates.items() if family not in RENDERERS
        }
        literals = {literal for template in self._templates.values() for literal in template.literals}
        self._control = ControlTokens(vocabulary.added, literals | set(specials.values()))
        self.control_ids = frozenset(self._control.texts)
        self._image_id = self._control.find(IMAGE_TOKENS.get(family, ""))
        if processor is not None and self._image_id is None:
            raise ModelError(f"{where}: the tokenizer has no token for images, and the model takes them")

    @classmethod
    def load(cls, files: ModelFiles) -> TextModel:
        """Raises ModelError when the files hold no tokenizer or template that can be used."""
        if files.gguf is not None:
            metadata = read_metadata(Path(files.gguf)).metadata
            vocabulary: Vocabulary = LibraryVocabulary(from_metadata(metadata, files.gguf), files.gguf)
            prefix = "tokenizer.chat_template"
            templates = {
                key.removeprefix(prefix).removeprefix(".") or "default": value
                for key, value in metadata.items()
                if (key == prefix or key.startswith(prefix + ".")) and isinstance(value, str)
            }
            specials = special_texts(metadata)
        else:
            root = Path(files.root)
            vocabulary, templates, specials = read_vocabulary(root), read_templates(root), _specials(root)
        return cls(
            vocabulary,
            templates=templates,
            specials=specials,
            eos=end_ids(files),
            where=files.gguf or files.root,
            family=detect_family(files, templates.get("default")),
            processor=read_processor(files),
        )

    def render(self, request: ChatRequest, *, owner: str | None = None) -> list[int]:
        """The conversation as the model's template writes it, ready for the answer. The tokens of its texts are kept
        for `owner`'s next request, if there is one.

        Only what the template writes can become a control token; everything from the client is ordinary text. Unless
        the request says otherwise, reasoning of earlier turns stays where the template has a switch for it: a prompt
        then begins with all of the prompt before. Raises StokerError (INVALID) when there is no template or it refuses
        the conversation.
        """
        if self.family in RENDERERS:
            parts = self._control.join(serve(self.family, request))
        else:
            parts = self._control.split(self._from_template(request))
        return self.vocabulary.encode_parts(
            parts, nothing_known if owner is None else partial(self._memo.encode, owner)
        )

    def place(self, ids: list[int], sizes: Sequence[int]) -> tuple[list[int], list[int]]:
        """A rendered prompt in which each of its images has as many tokens as `sizes` says, and where each begins."""
        placed: list[int] = []
        starts: list[int] = []
        at = 0
        for size in sizes:
            assert self._image_id is not None
            found = ids.index(self._image_id, at)
            placed += ids[at:found]
            starts.append(len(placed))
            placed += [self._image_id] * size
            at = found + 1
        return placed + ids[at:], starts

    def prompt_state(self, prompt_ids: Sequence[int]) -> StartState:
        """What the prompt leaves open for the answer, as its last tag says."""
        tail = self.decode(prompt_ids[-_TAIL:]).rstrip()
        if tail.endswith("<think>"):
            return StartState.REASONING
        return StartState.CONTENT if tail.endswith("</think>") else StartState.NONE

    def encode(self, text: str) -> list[int]:
        """A raw prompt: special tokens in it are recognised, and what the tokenizer itself adds (BOS) is added."""
        return self.vocabulary.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, perhaps a part of a character; b"" for ids outside the vocabulary."""
        return self.vocabulary.token_bytes(token_id)

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """For one output; `skip_special` leaves special tokens out of the text."""
        return self.vocabulary.detokenizer(skip_special=skip_special)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        whole = self.detokenizer(skip_special=False)
        return whole.push(ids) + whole.finish()

    def _from_template(self, request: ChatRequest) -> str:
        template = self._templates.get("tool_use") if request.tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise invalid("no_chat_template", "this model has no chat template: use /v1/completions", param="messages")
        if not knows_tools(template.source):
            request = teach(request)
        defaults = {name: value for name, value in _KEEPS_REASONING.items() if name in template.source}
        given = variables(request, template.source, self._control.guard)
        return template.render({**defaults, **given, **self._specials})


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
