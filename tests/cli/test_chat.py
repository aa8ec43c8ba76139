"""`stoker chat` as a person uses it, in a process of its own, against a small server that speaks the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from aiohttp import web

RUN = "from stoker.cli import main; main()"
# A session of its own has no terminal yet; with one, Ctrl-C reaches it as it reaches a person's program.
RUN_IN_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {RUN}"
PATIENCE = 30.0


class FakeServer:
    """Answers "slow" without end, "broken" halfway, "refused" with an error event, anything else with `REPLY`."""

    REPLY = ("Hé", "llo \x1b[31m", "wörld")
    USAGE: ClassVar[dict[str, Any]] = {
        "prompt_tokens": 1234,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 1200},
    }

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.left = threading.Event()
        self.key: str | None = None
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/chat/completions", self._chat)])
        runner = web.AppRunner(app, handler_cancellation=True)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = "http://{}:{}".format(*runner.addresses[0])
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "unknown key", "code": "invalid_api_key"}}, status=401)
        return web.json_response({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        question = body["messages"][-1]["content"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": a comment keeps the line open\n\n")
        if question == "refused":
            await self._event(response, {"error": {"message": "the engine is down", "code": "unavailable"}})
            return response
        try:
            while True:
                for piece in self.REPLY:
                    await self._event(response, {"choices": [{"index": 0, "delta": {"content": piece}}]})
                if question != "slow":
                    break
                await asyncio.sleep(0.02)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        if question != "broken":
            await self._event(response, {"choices": [], "usage": self.USAGE})
            await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def _event(response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def terminal(server: FakeServer) -> Iterator[Terminal]:
    person = Terminal("--url", server.url)
    yield person
    person.close()


def piped(server: FakeServer, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "chat", "--url", server.url, *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=plain_env(),
    )


def plain_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "STOKER_API_KEY"} | {"TERM": "dumb"}


class Terminal:
    """A person at a pseudo-terminal."""

    def __init__(self, *args: str) -> None:
        """`args` follow `stoker chat`."""
        self.seen = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN_IN_TERMINAL, "chat", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=plain_env(),
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until `pattern` shows; return what came up to its end and forget it."""
        deadline = time.monotonic() + PATIENCE
        while (match := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} did not show in {self.seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
        shown, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return shown

    def left(self) -> int:
        """The exit status, once the program has left by itself."""
        return self.process.wait(PATIENCE)

    def press_ctrl_c_until_left(self) -> int:
        """Python's readline loses a Ctrl-C that comes between its prompt and its waiting: then press again."""
        for _ in range(10):
            self.type("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(PATIENCE / 10)
        raise AssertionError("Ctrl-C does not leave")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_piped_input_is_one_message(server: FakeServer) -> None:
    done = piped(server, "two\nlines\n", "--system", "Be brief.", "--temperature", "0", "--max-tokens", "7")
    assert done.returncode == 0
    assert done.stdout == "".join(server.REPLY) + "\n"
    assert re.fullmatch(
        r"tokens 1,234 in / 1,200 cached / 3 out · first token \d+\.\d\d s( · \d+\.\d tok/s)?\n", done.stderr
    )
    (body,) = server.bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "two\nlines"},
    ]
    assert body["model"] == "first"
    assert (body["temperature"], body["max_tokens"]) == (0, 7)
    assert body["stream_options"] == {"include_usage": True}


def test_only_what_was_given_is_sent(server: FakeServer) -> None:
    assert piped(server, "hi", "--model", "second").returncode == 0
    (body,) = server.bodies
    assert body["model"] == "second"
    assert body.keys() == {"model", "messages", "stream", "stream_options"}


def test_a_conversation(server: FakeServer, terminal: Terminal) -> None:
    terminal.wait_for(r"first at http.*\n(.|\n)*> ")
    terminal.type("/help\n")
    assert "/reset" in terminal.wait_for(r"Ctrl-C.*\n(.|\n)*> ")
    terminal.type("one\n")
    shown = terminal.wait_for(r"1,200 cached .*\n(.|\n)*> ")
    assert "Héllo [31mwörld" in shown, "text arrives, control characters do not"
    terminal.type("two\n")
    terminal.wait_for(r"1,200 cached .*\n(.|\n)*> ")
    terminal.type("/reset\n")
    terminal.wait_for(r"forgotten.*\n(.|\n)*> ")
    terminal.type("three\n")
    terminal.wait_for(r"1,200 cached .*\n(.|\n)*> ")
    terminal.type("/exit\n")
    assert terminal.left() == 0
    reply = "".join(server.REPLY)
    asked = [[message["content"] for message in body["messages"]] for body in server.bodies]
    assert asked == [["one"], ["one", reply, "two"], ["three"]]


def test_the_first_ctrl_c_stops_the_answer_and_the_second_leaves(server: FakeServer, terminal: Terminal) -> None:
    terminal.wait_for(r"first at http.*\n(.|\n)*> ")
    terminal.type("slow\n")
    terminal.wait_for("wörld")
    terminal.type("\x03")
    terminal.wait_for(r"stopped.*\n(.|\n)*> ")
    assert server.left.wait(PATIENCE), "the server sees the connection go, and can abort"
    terminal.type("go on\n")
    terminal.wait_for(r"1,200 cached .*\n(.|\n)*> ")
    roles = [message["role"] for message in server.bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user"], "what was seen stays in the conversation"
    assert terminal.press_ctrl_c_until_left() == 0


def test_an_error_keeps_the_conversation_going(server: FakeServer, terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("refused\n")
    terminal.wait_for(r"stoker: the engine is down(.|\n)*> ")
    terminal.type("again\n")
    terminal.wait_for(r"1,200 cached .*\n(.|\n)*> ")
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["again"]
    terminal.type("\x04")
    assert terminal.left() == 0


@pytest.mark.parametrize(
    ("question", "reason"), [("refused", "the engine is down"), ("broken", "ended the answer midway"), (" \n", "empty")]
)
def test_failures_are_one_line(server: FakeServer, question: str, reason: str) -> None:
    done = piped(server, question)
    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert done.stderr.startswith("stoker: ")
    assert done.stderr.count("\n") == 1


def test_a_key_that_is_wanted(server: FakeServer) -> None:
    server.key = "secret"
    refused = piped(server, "hi")
    assert refused.returncode == 1
    assert "unknown key (HTTP 401)" in refused.stderr
    assert "STOKER_API_KEY" in refused.stderr
    assert piped(server, "hi", "--key", "secret").returncode == 0


def test_no_server(server: FakeServer) -> None:
    server.close()
    done = piped(server, "hi")
    assert done.returncode == 1
    assert done.stderr == f"stoker: no server answers at {server.url}; start one with: stoker serve\n"


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1"])
def test_no_address(server: FakeServer, url: str) -> None:
    done = piped(server, "hi", "--url", url)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("stoker: ")
