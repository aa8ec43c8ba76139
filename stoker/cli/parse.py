"""`stoker parse`: what an output becomes as a message, to look into a transcript that went wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.lines import each_line
from stoker.cli.output import fail

EXAMPLES = """
[bold]Examples[/]

  stoker parse --family glm47 < outputs.jsonl                     one JSON line with the message for each output
  stoker parse --family kimi_k25 --tokenizer DIR < outputs.jsonl  from raw_token_ids where a line has them
  stoker parse --family hermes --split 3 < outputs.jsonl          the same, fed three characters at a time
"""


def parse(
    family: Annotated[str, typer.Option(help="Whose form the output has, such as kimi_k25 or glm47.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with tokenizer.json, or tiktoken.model and tokenizer_config.json.")
    ] = None,
    split: Annotated[int | None, typer.Option(min=1, help="Feed this many characters, or ids, at a time.")] = None,
) -> None:
    """Read outputs, one JSON line each with id, raw_text and how they came about (tools, request, start_state,
    engine_finish), and write {id, reasoning, content, tool_calls, finish_reason, deltas} for each. Calls that broke off
    are there with what was streamed; deltas are those of a stream of chat completions."""
    from stoker.cli.parse_lines import parse_line
    from stoker.models.source import ModelError
    from stoker.models.text.family import Family
    from stoker.models.text.parse.format import FORMATS, format_of
    from stoker.models.text.vocabulary import read_vocabulary

    known = {*FORMATS, *map(str, Family)}
    if family not in known:
        raise fail(f"there is no family {family!r}: choose one of {', '.join(sorted(known))}", code=2)
    try:
        vocabulary = None if tokenizer is None else read_vocabulary(tokenizer)
    except ModelError as error:
        raise fail(str(error)) from error
    format = format_of(family)
    each_line(lambda line: parse_line(line, format, vocabulary, split))
