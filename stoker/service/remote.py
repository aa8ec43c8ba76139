"""Images fetched for clients by https. The client chooses the URL, so nothing of this server's surroundings may be
within its reach: public addresses only, resolved once and connected to as they were found, no other host by redirect,
bounds on bytes and time.

Owns the connections. Decides nothing about what is in the file; keeps nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from stoker.config import ImagesConfig
from stoker.service.addresses import Address, is_public, resolve
from stoker.types.errors import ErrorKind, StokerError, invalid

TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"})
REDIRECTS = 3
AT_ONCE = 16  # fetches
WAITING = 256  # fetches at most, waiting or running
MAX_URL = 8192  # characters
CHUNK = 64 * 1024
_HEADERS = {"Accept": "image/png, image/jpeg, image/webp, image/gif", "Accept-Encoding": "identity"}
_MOVED = (301, 302, 303, 307, 308)


class RemoteImages:
    """`await fetch(url)` in one event loop. `look_up`, `allowed`, `scheme` and `tls` are what tests replace: how a host
    is resolved, where connections may go, and with what."""

    def __init__(
        self,
        config: ImagesConfig,
        *,
        look_up: Callable[[str, int], Awaitable[Sequence[Address]]] = resolve,
        allowed: Callable[[Address], bool] = is_public,
        scheme: str = "https",
    ) -> None:
        self._config = config
        self._look_up = look_up
        self._allowed = allowed
        self._scheme = scheme
        self._free = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def fetch(self, url: str) -> bytes:
        """The file at `url`. Raises StokerError: INVALID for what may not or cannot be fetched, CAPACITY."""
        target = self._check(url)
        if self._waiting >= WAITING:
            raise StokerError(ErrorKind.CAPACITY, "fetch_queue_full", "Too many images are being fetched.")
        self._waiting += 1
        try:
            async with self._free, asyncio.timeout(self._config.timeout):
                return await self._fetch(target)
        except TimeoutError:
            raise _failed(f"it did not come within {self._config.timeout:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(f"its server cannot be used ({type(error).__name__})") from error
        finally:
            self._waiting -= 1

    def _check(self, url: str) -> URL:
        if not self._config.fetch:
            raise _denied("images are not fetched here; send the image itself as a data URL")
        try:
            target = URL(url) if len(url) <= MAX_URL else URL()
            port = target.port
        except ValueError:
            raise _denied("it is not a URL") from None
        if target.scheme != self._scheme or not target.host or port is None:
            raise _denied(f"images are fetched by {self._scheme} only, or sent as data URLs")
        if target.user is not None or target.password is not None:
            raise _denied("it has a user name in it")
        hosts = self._config.hosts
        if hosts and not any(_matches(target.host.lower().rstrip("."), pattern.lower()) for pattern in hosts):
            raise _denied("its host is not one that images are fetched from")
        return target

    async def _fetch(self, url: URL) -> bytes:
        address = await self._address(url)
        connector = aiohttp.TCPConnector(resolver=_Pinned(address), use_dns_cache=False, limit=1, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            auto_decompress=False,
            trust_env=False,
        ) as session:
            for _ in range(REDIRECTS + 1):
                async with session.get(url, allow_redirects=False) as response:
                    if response.status not in _MOVED:
                        return await self._body(response)
                    url = self._moved(url, response.headers.get("Location", ""))
        raise _failed(f"it is moved more than {REDIRECTS} times")

    async def _address(self, url: URL) -> Address:
        """The one address that is connected to. Refused if the name leads to any other than public ones."""
        assert url.host is not None
        assert url.port is not None
        try:
            found = await self._look_up(url.host, url.port)
        except (OSError, UnicodeError) as error:
            raise _failed("its host is not known") from error
        if not found or not all(map(self._allowed, found)):
            raise _denied("its host is not on the public internet")
        return found[0]

    def _moved(self, url: URL, location: str) -> URL:
        """Where a redirect leads: another path of the same host, for the address was found for that one."""
        target = self._check(str(url.join(URL(location)))) if location else None
        if target is None or target.origin() != url.origin():
            raise _denied("it is moved to another host")
        return target

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != 200:
            raise _failed(f"its server answers with status {response.status}")
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in TYPES:
            raise _failed("it is not of an image type that is read: PNG, JPEG, WebP or GIF")
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise _failed("it is compressed once more")
        limit = self._config.max_bytes
        if (response.content_length or 0) > limit:
            raise _too_large(limit)
        body = bytearray()
        async for chunk in response.content.iter_chunked(CHUNK):
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
        return bytes(body)


class _Pinned(AbstractResolver):
    """Whatever the name: the address that was found."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        kind = socket.AF_INET6 if self._address.version == 6 else socket.AF_INET
        return [
            ResolveResult(
                hostname=host,
                host=str(self._address),
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    async def close(self) -> None:
        return None


def _matches(host: str, pattern: str) -> bool:
    """`*.example.org` stands for all below `example.org`."""
    return host == pattern or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _denied(reason: str) -> StokerError:
    return invalid("image_url_refused", f"The image is not fetched: {reason}.")


def _failed(reason: str) -> StokerError:
    return invalid("image_unreachable", f"The image could not be fetched: {reason}.")


def _too_large(limit: int) -> StokerError:
    return invalid("image_too_large", f"The image has more than {limit} bytes.")
