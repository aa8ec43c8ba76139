"""A client that can misbehave: HTTP/1.1 by hand, and strict parsers for what comes back."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error["code"]


@asynccontextmanager
async def connect(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(method: str, path: str, **headers: str) -> bytes:
    fields = {"host": "test"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return (
        f"{method} {path} HTTP/1.1\r\n".encode()
        + b"".join(f"{k}: {v}\r\n".encode() for k, v in fields.items())
        + b"\r\n"
    )


def post(path: str, body: Any, **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content_type": "application/json", "content_length": str(len(data))} | headers
    return head("POST", path, **fields) + data


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, status, _ = lines[0].split(" ", 2)
    assert version == "HTTP/1.1"
    headers = {}
    for line in lines[1:]:
        if line:
            name, value = line.split(": ", 1)
            assert name not in headers
            headers[name] = value
    return int(status), headers


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    data = await reader.readexactly(size)
    assert await reader.readexactly(2) == b"\r\n"
    return data


async def read_answer(reader: asyncio.StreamReader, *, within: float = 10.0) -> Answer:
    async with asyncio.timeout(within):
        status, headers = await read_head(reader)
        body = b""
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while chunk := await read_chunk(reader):
                body += chunk
        return Answer(status, headers, body)


async def ask(server, request: bytes, *, within: float = 10.0) -> Answer:
    async with connect(server) as (reader, writer):
        writer.write(request)
        return await read_answer(reader, within=within)


async def get(server, path: str, **headers: str) -> Answer:
    return await ask(server, head("GET", path, **headers))


def parse_events(body: bytes) -> tuple[list[str], int]:
    """(data of each event, number of comments). Only `data: X` and `: comment` are allowed, each ended by an empty
    line, nothing left over."""
    data, comments = [], 0
    assert body.endswith(b"\n\n")
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        assert "\n" not in block
        assert "\r" not in block
        if block.startswith(": "):
            comments += 1
        else:
            assert block.startswith("data: ")
            data.append(block.removeprefix("data: "))
    return data, comments


CHAT = "/v1/chat/completions"


def chat_body(**more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]} | more
