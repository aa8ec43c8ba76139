"""The OpenAI chat protocol as `stoker chat` needs it: one model name, one streamed answer at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 300.0
LINE_BYTES = 1 << 20


class ChatError(Exception):
    """No answer came; the message says why and what to do, in one line."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


@dataclass
class Answer:
    """The text so far; token counts as the server gave them; seconds from the question to the first and last text."""

    text: str = ""
    input: int = 0
    cached: int = 0
    output: int = 0
    first: float | None = None
    last: float = 0.0


class Client:
    """One server. Used from one event loop; `close` it there."""

    def __init__(self, url: str, session: aiohttp.ClientSession, options: dict[str, Any]) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = ""
        self._session = session
        self._options = options

    @classmethod
    async def open(cls, url: str, key: str | None, options: dict[str, Any]) -> Client:
        """`options` are sampling parameters sent with every question. Connects to nothing yet."""
        session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
            read_bufsize=LINE_BYTES,
        )
        return cls(url, session, options)

    async def close(self) -> None:
        await self._session.close()

    async def first_model(self) -> str:
        async with self._request("GET", "/v1/models") as response:
            models = msgspec.json.decode(await response.read(), type=_Models).data
        if not models:
            raise ChatError(f"{self.url} serves no model")
        return models[0].id

    async def ask(self, messages: list[dict[str, str]], answer: Answer, write: Callable[[str], None]) -> None:
        """Stream the answer to `messages` into `answer` and, piece by piece, to `write`.

        Cancelling this closes the connection, which stops the generation on the server too.
        """
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        start = time.perf_counter()
        async with self._request("POST", "/v1/chat/completions", body) as response:
            async for line in response.content:
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if data == line.strip():
                    continue  # between events, or a comment that keeps the connection alive
                chunk = msgspec.json.decode(data, type=_Chunk)
                if chunk.error is not None:
                    raise ChatError(chunk.error.message)
                if chunk.usage is not None:
                    details = chunk.usage.prompt_tokens_details
                    answer.input, answer.output = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                    answer.cached = (details and details.cached_tokens) or 0
                for piece in (choice.delta.content for choice in chunk.choices):
                    if piece:
                        answer.last = time.perf_counter() - start
                        answer.first = answer.last if answer.first is None else answer.first
                        answer.text += piece
                        write(piece)
        raise ChatError("the server ended the answer midway; its log says why")

    @asynccontextmanager
    async def _request(self, method: str, path: str, body: Any = None) -> AsyncGenerator[aiohttp.ClientResponse]:
        """A response of status 200, closed at the end whether it was read or not. Everything else is a `ChatError`."""
        try:
            async with self._session.request(method, self.url + path, json=body) as response:
                try:
                    if response.status != 200:
                        raise ChatError(_reason(response.status, await response.content.read(LINE_BYTES)))
                    yield response
                finally:
                    response.close()
        except aiohttp.ClientConnectorError as error:
            raise ChatError(f"no server answers at {self.url}; start one with: stoker serve") from error
        except aiohttp.InvalidURL as error:
            raise ChatError(f"{self.url!r} is no address; write for example http://127.0.0.1:8000") from error
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise ChatError(
                f"{self.url} broke off or sent what is no chat stream: {error or type(error).__name__}"
            ) from error


def _reason(status: int, body: bytes) -> str:
    """The server's own words where it has some."""
    try:
        reason = msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.DecodeError:
        reason = "no reason given"
    hint = "; give the server's key with --key or STOKER_API_KEY" if status == 401 else ""
    return f"{reason} (HTTP {status}){hint}"
