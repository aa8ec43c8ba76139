"""`stoker serve` as a process of its own, with its request log at hand."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY_SECONDS = 120.0
STOP_SECONDS = 10.0


class CheckError(Exception):
    """Something was not as it must be; the message says what was seen."""


class StokerServer:
    """A running server. `log` is the file with its JSON log lines."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.base = f"http://127.0.0.1:{port}"
        self._port = port
        self._log = log

    def requests(self) -> list[dict[str, Any]]:
        """The log entries of finished requests under /v1, oldest first."""
        return [entry for entry in parse_log(self._log.read_text()) if str(entry.get("path", "")).startswith("/v1/")]

    def wait_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise CheckError(f"stoker serve ended with status {self.process.returncode}:\n{self._log.read_text()}")
            if self._answers():
                return
            time.sleep(0.1)
        raise CheckError(f"stoker serve is not ready after {READY_SECONDS:.0f} s:\n{self._log.read_text()}")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def parse_log(text: str) -> list[dict[str, Any]]:
    """JSON log lines that tell of a finished request; other lines are passed over."""
    entries: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("action") == "http.request":
            entries.append(entry)
    return entries


@contextmanager
def stoker_server(folder: Path, *arguments: str, model: str = "demo") -> Generator[StokerServer]:
    """Serve `model`, called `demo`, on a free loopback port until the block ends; `folder` holds its data and log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "stoker.log"
    command = [sys.executable, "-m", "stoker.cli", "serve", "--model", model, "--name", "demo"]
    command += ["--port", str(port)]
    command += ["--data-dir", str(folder / "data"), "--log-format", "json", *arguments]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    server = StokerServer(process, port, log)
    try:
        server.wait_ready()
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
