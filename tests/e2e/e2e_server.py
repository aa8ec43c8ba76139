"""A real `stoker serve` with the demo model, in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp

KEYS = {"alice": "sk-alice-0123456789", "bob": "sk-bob-0123456789"}


class Server:
    """`stoker serve` on a free port. `stop()` returns how long Ctrl-C took."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "serve.log"
        standard = ["--port", str(self.port), "--data-dir", str(folder), "--threads", "1", "--log-format", "json"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stoker.cli", "serve", *standard, *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
            )

    def wait_ready(self, within: float = 120.0) -> Server:
        end = time.monotonic() + within
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health/ready", timeout=2.0):
                    return self
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"not ready: {self.log.read_text(encoding='utf-8')[-2000:]}")

    def lines(self) -> list[dict[str, Any]]:
        whole, _, _ = self.log.read_text(encoding="utf-8").rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def engine_pids(self) -> list[int]:
        """In the order in which they were started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children.split()}
        return [pid for pid, command in commands.items() if b"stoker.engine" in command]

    def engine_pid(self) -> int:
        return self.engine_pids()[0]

    async def idle(self, model: str = "demo", within: float = 10.0) -> dict[str, Any]:
        """The figures of the engine of the model's first replica, once it runs nothing."""
        end = time.monotonic() + within
        async with aiohttp.ClientSession() as http:
            while True:
                async with http.get(f"{self.url}/health/ready") as response:
                    stats = (await response.json())["models"][model]["replicas"][f"{model}/0"]["engine"]
                if stats["running"] + stats["waiting"] + stats["blocks_in_use"] == 0:
                    return stats
                assert time.monotonic() < end, f"still busy: {stats}"
                await asyncio.sleep(0.05)

    def stop(self) -> float:
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        return time.monotonic() - began


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
