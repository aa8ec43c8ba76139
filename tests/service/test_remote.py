"""Images by URL: what is fetched, and all that is not. Servers are real ones on loopback, where tests allow that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest
from aiohttp import web

from stoker.config import ImagesConfig
from stoker.service.addresses import Address
from stoker.service.remote import REDIRECTS, RemoteImages
from stoker.types.errors import ErrorKind, StokerError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FILE = b"\x89PNG not really" * 1000


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[int]:
    runner = web.ServerRunner(web.Server(handler))  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Names:
    """A resolver that counts, and gives one answer after another."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [ip_address(part) for part in answer.split()]


def local(names: Names | None = None, **config: object) -> RemoteImages:
    """Fetches by http, from loopback too."""
    return RemoteImages(
        ImagesConfig(**config),  # type: ignore[arg-type]
        look_up=names or Names("127.0.0.1"),
        allowed=lambda _: True,
        scheme="http",
    )


async def refused(remote: RemoteImages, url: str) -> StokerError:
    with pytest.raises(StokerError) as failure:
        await remote.fetch(url)
    assert failure.value.kind is ErrorKind.INVALID
    return failure.value


async def whole(request: web.Request) -> web.Response:
    return web.Response(body=FILE, content_type="image/png")


async def test_an_image_by_name_from_the_address_that_was_found() -> None:
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return await whole(request)

    async with serving(handler) as port:
        names = Names("127.0.0.1", "10.0.0.1")
        assert await local(names).fetch(f"http://pictures.example:{port}/a/b.png?c=d") == FILE
        assert names.asked == ["pictures.example"]
    (request,) = seen
    assert request.headers["Host"] == f"pictures.example:{port}"
    assert request.path_qs == "/a/b.png?c=d"
    assert not {"Cookie", "Authorization", "Referer"} & request.headers.keys()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/a.png",  # not by https
        "ftp://example.org/a.png",
        "file:///etc/passwd",
        "gopher://example.org/",
        "//example.org/a.png",
        "/etc/passwd",
        "https://",
        "https:///a.png",
        "https://user@example.org/a.png",
        "https://user:secret@example.org/a.png",
        "https://example.org:99999/a.png",
        "https://example.org:x/a.png",
        "https://[::1/a.png",
        "https://" + "a" * 9000,
        "",
    ],
)
async def test_urls_that_are_not_looked_at(url: str) -> None:
    names = Names("8.8.8.8")
    error = await refused(RemoteImages(ImagesConfig(), look_up=names), url)
    assert error.code == "image_url_refused"
    assert names.asked == []


@pytest.mark.parametrize(
    "answer", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:192.168.0.1", "8.8.8.8 127.0.0.1", "fd00::1"]
)
async def test_names_that_lead_inside(answer: str) -> None:
    error = await refused(RemoteImages(ImagesConfig(), look_up=Names(answer)), "https://innocent.example/a.png")
    assert error.code == "image_url_refused"
    assert answer not in error.message


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "0.0.0.0", "[::]"],
)
async def test_addresses_that_lead_inside_by_any_notation(host: str) -> None:
    assert (await refused(RemoteImages(ImagesConfig()), f"https://{host}/a.png")).code == "image_url_refused"


async def test_a_name_that_nobody_knows() -> None:
    async def nobody(host: str, port: int) -> list[Address]:
        raise OSError("no such name")

    remote = RemoteImages(ImagesConfig(), look_up=nobody)
    assert (await refused(remote, "https://nobody.invalid/a.png")).code == "image_unreachable"


async def test_nothing_is_fetched_where_that_is_turned_off() -> None:
    names = Names("8.8.8.8")
    error = await refused(RemoteImages(ImagesConfig(fetch=False), look_up=names), "https://example.org/a.png")
    assert error.code == "image_url_refused"
    assert "data URL" in error.message
    assert names.asked == []


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("example.org", True),
        ("EXAMPLE.org.", True),
        ("a.example.org", False),
        ("cdn.example.net", True),
        ("a.b.example.net", True),
        ("example.net", False),
        ("evilexample.net", False),
        ("example.org.evil.net", False),
    ],
)
async def test_only_from_the_hosts_that_are_listed(host: str, taken: bool) -> None:
    async with serving(whole) as port:
        remote = local(hosts=("example.org", "*.example.net"))
        url = f"http://{host}:{port}/a.png"
        if taken:
            assert await remote.fetch(url) == FILE
        else:
            assert (await refused(remote, url)).code == "image_url_refused"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_another_path_of_the_same_host(status: int) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/a.png":
            return web.Response(status=status, headers={"Location": "/b.png"})
        return await whole(request)

    async with serving(handler) as port:
        names = Names("127.0.0.1", "10.0.0.1")
        assert await local(names).fetch(f"http://example.org:{port}/a.png") == FILE
        assert len(names.asked) == 1


@pytest.mark.parametrize(
    "location",
    [
        "http://other.example/b.png",
        "http://example.org/b.png",  # another port
        "https://example.org:{port}/b.png",
        "http://127.0.0.1:{port}/b.png",
        "//other.example/b.png",
        "http://user@example.org:{port}/b.png",
        "file:///etc/passwd",
        "",
    ],
)
async def test_no_other_host_by_redirect(location: str) -> None:
    paths: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(status=302, headers={"Location": location.replace("{port}", str(request.url.port))})

    async with serving(handler) as port:
        assert (await refused(local(), f"http://example.org:{port}/a.png")).code == "image_url_refused"
    assert paths == ["/a.png"]


async def test_redirects_end() -> None:
    count = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal count
        count += 1
        return web.Response(status=302, headers={"Location": f"/{count}"})

    async with serving(handler) as port:
        assert (await refused(local(), f"http://example.org:{port}/")).code == "image_unreachable"
    assert count == REDIRECTS + 1


@pytest.mark.parametrize("status", [204, 206, 304, 401, 404, 500])
async def test_other_answers(status: int) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status)

    async with serving(handler) as port:
        error = await refused(local(), f"http://example.org:{port}/a.png")
        assert (error.code, str(status) in error.message) == ("image_unreachable", True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/html"},
        {"Content-Type": "image/svg+xml"},
        {"Content-Type": "application/json"},
        {"Content-Type": "image/png", "Content-Encoding": "gzip"},
    ],
)
async def test_what_is_no_image_is_not_read(headers: dict[str, str]) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=FILE, headers=headers)

    async with serving(handler) as port:
        error = await refused(local(), f"http://example.org:{port}/a.png")
        assert error.code == "image_unreachable"
        assert "PNG not really" not in error.message


@pytest.mark.parametrize("announced", [True, False])
async def test_too_large(announced: bool) -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        if announced:
            return await whole(request)
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        await response.prepare(request)
        while True:
            await response.write(FILE)
            sent += len(FILE)

    async with serving(handler) as port:
        error = await refused(local(max_bytes=len(FILE) - 1), f"http://example.org:{port}/a.png")
        assert error.code == "image_too_large"
    assert sent < 64 << 20


@pytest.mark.parametrize("where", ["before", "within"])
async def test_a_server_that_takes_too_long(where: str) -> None:
    release = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "image/png", "Content-Length": "100"})
        if where == "within":
            await response.prepare(request)
            await response.write(b"x")
        await release.wait()
        return response

    async with serving(handler) as port:
        error = await refused(local(timeout=0.2), f"http://example.org:{port}/a.png")
        release.set()
    assert error.code == "image_unreachable"
    assert "0.2 seconds" in error.message


async def test_a_server_that_is_not_there() -> None:
    async with serving(whole) as port:
        pass
    assert (await refused(local(), f"http://example.org:{port}/a.png")).code == "image_unreachable"


async def test_cut_short() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "image/png", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"x")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(handler) as port:
        assert (await refused(local(), f"http://example.org:{port}/a.png")).code == "image_unreachable"


async def test_tls_is_for_the_name_and_not_for_the_address() -> None:
    """A plain server where https is asked for: the handshake fails, and nothing is sent in the clear."""
    async with serving(whole) as port:
        remote = RemoteImages(ImagesConfig(), look_up=Names("127.0.0.1"), allowed=lambda _: True)
        assert (await refused(remote, f"https://example.org:{port}/a.png")).code == "image_unreachable"


async def test_too_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.service.remote.WAITING", 1)
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        started.set()
        await release.wait()
        return await whole(request)

    async with serving(handler) as port:
        remote = local()
        first = asyncio.create_task(remote.fetch(f"http://example.org:{port}/a.png"))
        await started.wait()
        with pytest.raises(StokerError) as failure:
            await remote.fetch(f"http://example.org:{port}/b.png")
        assert failure.value.kind is ErrorKind.CAPACITY
        release.set()
        assert await first == FILE
        assert await remote.fetch(f"http://example.org:{port}/c.png") == FILE
