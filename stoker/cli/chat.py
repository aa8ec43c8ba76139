"""`stoker chat`: talk to a running server in the terminal. Owns the conversation on the screen, not the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.output import fail

if TYPE_CHECKING:
    from stoker.cli.chat_client import Answer, Client

EXAMPLES = """
[bold]Examples[/]

  stoker chat                                     talk to the server on this machine
  stoker chat --system "Answer in one sentence."  with instructions
  stoker chat --url https://models.example.org    to another server; its key in STOKER_API_KEY
  git diff | stoker chat --temperature 0          standard input is one message, the answer goes to standard output
"""

COMMANDS = """/help    show this
/reset   forget the conversation (the instructions stay)
/exit    leave (Ctrl-D too)
Ctrl-C   stop the answer; at the prompt, leave"""


def chat(
    url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(envvar="STOKER_API_KEY", help="API key, where the server wants one.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the whole conversation.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask; the server's first otherwise.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.", min=0, max=2)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.", min=1)] = None,
) -> None:
    """Chat with a model that `stoker serve` (or another OpenAI-compatible server) serves."""
    from stoker.cli.chat_client import ChatError, Client

    options = {"temperature": temperature, "max_tokens": max_tokens}
    with asyncio.Runner() as runner:
        client = runner.run(
            Client.open(url, key, {name: value for name, value in options.items() if value is not None})
        )
        try:
            client.model = model or runner.run(client.first_model())
            history = [{"role": "system", "content": system}] if system else []
            if sys.stdin.isatty():
                _converse(runner, client, history)
            else:
                _answer_input(runner, client, history)
        except ChatError as error:
            raise fail(str(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        finally:
            runner.run(client.close())


def _answer_input(runner: asyncio.Runner, client: Client, history: list[dict[str, str]]) -> None:
    from stoker.cli.chat_client import Answer

    text = sys.stdin.buffer.read().decode(errors="replace").strip()
    if not text:
        raise fail("standard input is empty; write a message to it", code=2)
    answer = Answer()
    runner.run(client.ask([*history, {"role": "user", "content": text}], answer, _write))
    sys.stdout.write("\n")
    _dim(_figures(answer), err=True)


def _converse(runner: asyncio.Runner, client: Client, history: list[dict[str, str]]) -> None:
    from stoker.cli.chat_client import Answer, ChatError

    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # editing and history for input(); in memory only, content is not stored
    _dim(f"{client.model} at {client.url} · /help for commands, Ctrl-D leaves")
    start = list(history)
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            return
        if text.startswith("/"):
            if text == "/exit":
                return
            if text == "/reset":
                history = list(start)
            _dim("conversation forgotten" if text == "/reset" else COMMANDS)
            continue
        if not text:
            continue
        history.append({"role": "user", "content": text})
        answer = Answer()
        try:
            runner.run(client.ask(history, answer, _write))
            _dim(f"\n{_figures(answer)}")
        except KeyboardInterrupt:
            _dim("\nstopped")
        except ChatError as error:
            fail(str(error))
        # What was seen stays in the conversation, so that the next turn finds its prefix in the cache.
        if answer.text:
            history.append({"role": "assistant", "content": answer.text})
        else:
            history.pop()


def _write(piece: str) -> None:
    """Show a piece of the answer. A terminal gets no control characters: a model must not be able to steer it."""
    if sys.stdout.isatty():
        piece = "".join(char for char in piece if char.isprintable() or char in "\n\t")
    sys.stdout.write(piece)
    sys.stdout.flush()


def _dim(text: str, *, err: bool = False) -> None:
    typer.secho(text, dim=True, err=err)


def _figures(answer: Answer) -> str:
    """Tokens read, found in the cache and written; seconds to the first; how fast the rest came."""
    tokens = f"{answer.input:,} in / {answer.cached:,} cached / {answer.output:,} out"
    figures = [f"tokens {tokens}" if answer.output else "no token counts from this server"]
    if answer.first is not None:
        figures.append(f"first token {answer.first:.2f} s")
        if answer.output > 1 and answer.last > answer.first:
            figures.append(f"{(answer.output - 1) / (answer.last - answer.first):.1f} tok/s")
    return " · ".join(figures)
