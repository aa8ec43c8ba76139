"""A server that answers `/v1/completions` and `/health` as vLLM 0.32 does, for prompts of token ids.

What it writes follows from the prompt and the position alone, so two servers go on alike. The shapes of its events are
vLLM's own; a real one is used by `python -m bench.external`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import web


def token_after(prompt: list[int], at: int) -> int:
    return (prompt[0] + 7 * at) % 400 + 10


class FakeVLLM:
    """`open` requests run now; `cut` after so many tokens ends the connection; `pace` is awaited before each token."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.open = 0
        self.healthy = True
        self.cut: int | None = None
        self.refuse: tuple[int, str] | None = None
        self.garbage: bytes | None = None
        self.eos: int | None = None  # written where the output would reach this many tokens
        self.pace: Callable[[], Any] = lambda: asyncio.sleep(0)
        self.cached = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        if self.refuse:
            status, text = self.refuse
            return web.json_response({"error": {"message": text, "code": status}}, status=status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self.open += 1
        try:
            with suppress(ConnectionResetError):
                await self._write(body, response)
        finally:
            self.open -= 1
        return response

    async def _write(self, body: dict[str, Any], response: web.StreamResponse) -> None:
        prompt: list[int] = body["prompt"]
        reason = None
        for at in range(body["max_tokens"]):
            await self.pace()
            if self.garbage is not None:
                await response.write(self.garbage)
            if self.cut == at:
                assert response._req
                assert response._req.transport
                response._req.transport.abort()
                return
            ends = self.eos is not None and len(prompt) + at >= self.eos
            token = body["stop_token_ids"][0] if ends else token_after(prompt, len(prompt) + at)
            reason = "stop" if ends else "length" if at == body["max_tokens"] - 1 else None
            choice: dict[str, Any] = {
                "index": 0,
                "text": "?",
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": [token],
            }
            if "logprobs" in body:
                choice["logprobs"] = {
                    "tokens": [f"token_id:{token}"],
                    "token_logprobs": [-0.5],
                    "top_logprobs": [{f"token_id:{token}": -0.5, "token_id:3": -1.5}],
                    "text_offset": [0],
                }
            await self._event(response, {"id": "cmpl-1", "choices": [choice], "usage": None})
            if reason:
                break
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": 1,
            "total_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": self.cached} if self.cached else None,
        }
        await self._event(response, {"id": "cmpl-1", "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")

    async def _event(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
