"""Content in parts, as all dialects share it: texts side by side become one, images keep their places among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, unsupported, wrong_type
from stoker.types.chat import Image
from stoker.types.errors import invalid

MAX_URL_CHARS = 28 << 20  # a data URL of an image of 20 MB
DETAILS = ("auto", "low", "high", "original")


def join_parts(parts: Iterable[str | Image]) -> str | tuple[str | Image, ...]:
    """Content as `Message` has it. Texts that stand side by side get a line break between them."""
    joined: list[str | Image] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += f"\n{part}"
        else:
            joined.append(part)
    if any(isinstance(part, Image) for part in joined):
        return tuple(joined)
    return "".join(part for part in joined if isinstance(part, str))


def only_text(parts: Sequence[str | Image], reason: str) -> str:
    """The texts of content that has no images. Raises StokerError (INVALID) if it has."""
    content = join_parts(parts)
    if isinstance(content, str):
        return content
    raise unsupported(next(part.param for part in content if isinstance(part, Image)), reason)


def read_image(fields: Fields, name: str) -> Image:
    """An image by its URL under `name`. What OpenAI calls its detail is checked and changes nothing: a model sees as
    much of an image as it can."""
    fields.choice("detail", DETAILS)
    return Image(_read_url(fields, name), fields.path)


def read_source(fields: Fields) -> Image:
    """An image by Anthropic's `source`."""
    source = fields.object("source")
    if source is None:
        raise fields.missing("source")
    match source.choice("type", ("base64", "url", "file")):
        case None:
            raise source.missing("type")
        case "base64":
            kind = source.required_text("media_type", longest=MAX_NAME_CHARS)
            data = source.required_text("data", longest=MAX_URL_CHARS)
            return Image(f"data:{kind};base64,{data}", fields.path)
        case "url":
            return Image(_read_url(source, "url"), fields.path)
        case _:
            raise unsupported(source.path, "files are not kept, send the image itself")


def _read_url(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if value is None:
        raise fields.missing(name)
    if not isinstance(value, str):
        raise wrong_type(fields.param(name), "a string", value)
    if len(value) > MAX_URL_CHARS:
        raise invalid("image_too_large", f"'{fields.path}' is an image of more than 20 MB.", param=fields.path)
    return value
