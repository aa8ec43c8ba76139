"""The operator's end of the admin routes: over the Unix socket of a data folder, or to a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from stoker.cli.admin_socket import SOCKET
from stoker.gateway.admin import Outcome, ServerStatus


class AdminError(Exception):
    """The server cannot be reached or refuses; the message is for a person."""


class AdminClient:
    """`url` and `key` of a server elsewhere; without them that of `folder` on this host. Raises AdminError."""

    def __init__(self, folder: Path, url: str | None, key: str | None) -> None:
        self._socket = folder / SOCKET
        self._url = url.rstrip("/") if url else None
        self._headers = {"authorization": f"Bearer {key}"} if key and url else {}

    async def status(self) -> ServerStatus:
        async with self._request("GET", "status") as response:
            return msgspec.json.decode(await response.read(), type=ServerStatus)

    async def operate(self, what: str, ask: dict[str, Any], say: Callable[[str], None]) -> None:
        """Until it is done, however long that takes."""
        async with self._request("POST", what, ask) as response:
            async for line in response.content:
                outcome = msgspec.json.decode(line, type=Outcome)
                if outcome.error is not None:
                    raise AdminError(outcome.error)
                if outcome.say is not None:
                    say(outcome.say)
                if outcome.done:
                    return
        raise AdminError("the server ended before it was done")

    @asynccontextmanager
    async def _request(
        self, method: str, what: str, ask: dict[str, Any] | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        connector = None if self._url else aiohttp.UnixConnector(str(self._socket))
        where = self._url or str(self._socket)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as http,
                http.request(method, f"{self._url or 'http://localhost'}/admin/{what}", json=ask) as response,
            ):
                if response.status != 200:
                    raise AdminError(f"{where}: {await _refusal(response)}")
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AdminError(f"no server answers at {where}: {error}") from error


async def _refusal(response: aiohttp.ClientResponse) -> str:
    try:
        return str(msgspec.json.decode(await response.read())["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"status {response.status}; is it a Stoker server?"
