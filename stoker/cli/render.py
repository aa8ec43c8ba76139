"""`stoker render`: what a conversation becomes as a prompt, to look into a template or a broken transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli.lines import each_line
from stoker.cli.output import fail

EXAMPLES = """
[bold]Examples[/]

  stoker render --family glm47 < chats.jsonl    the prompt of each chat, as text
  stoker render --family kimi_k2 --tokenizer DIR < chats.jsonl    and as token ids
"""


def render(
    family: Annotated[str, typer.Option(help="Whose form the prompt has, such as kimi_k25 or glm47.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with tokenizer.json, or tiktoken.model and tokenizer_config.json.")
    ] = None,
) -> None:
    """Read chat requests, one JSON line each with id, messages, tools and kwargs (the template's switches), and write
    {id, text} for each, with token_ids where a tokenizer is given."""
    from stoker.models.source import ModelError
    from stoker.models.text import renderers
    from stoker.models.text.control import ControlTokens
    from stoker.models.text.turns import from_body
    from stoker.models.text.vocabulary import read_vocabulary

    known = {name.value: name for name in renderers.RENDERERS}
    if family not in known:
        raise fail(f"there is no renderer for the family {family!r}: choose one of {', '.join(known)}", code=2)
    try:
        vocabulary = None if tokenizer is None else read_vocabulary(tokenizer)
    except ModelError as error:
        raise fail(str(error)) from error
    control = None if vocabulary is None else ControlTokens(vocabulary.added, ())

    def work(line: dict[str, Any]) -> dict[str, Any]:
        pieces = renderers.render(known[family], from_body(line))
        answer: dict[str, Any] = {"text": "".join(pieces)}
        if vocabulary is not None and control is not None:
            answer["token_ids"] = vocabulary.encode_parts(control.join(pieces))
        return answer

    each_line(work)
