"""Stoker itself, started as its users start it. Its data folder lives as long as the whole run."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.adapters.base import Server


def peer(peers: Path) -> Server:
    command = [sys.executable, "-m", "stoker.cli", "serve", "--model", "demo", "--port", "{port}"]
    return Server(
        name="stoker",
        command=[*command, "--data-dir", "{folder}/stoker-data"],
        model="demo",
        ready_path="/health/ready",
    )
