"""llama.cpp's own server on the bf16 GGUF. Eight slots with a cache each: with one unified cache every sequence
attends over the others' cells, which is much slower on the concurrent workloads."""

from __future__ import annotations

import os
from pathlib import Path

from bench.adapters.base import Missing, Server
from bench.convert import bf16_gguf

SLOTS = 8
CONTEXT = 8192


def peer(peers: Path) -> Server | Missing:
    binary = peers / "llama_cpp" / "build" / "bin" / "llama-server"
    if not binary.is_file():
        return Missing("llama_cpp", "llama-server is not built here: make bench-peer-llama_cpp")
    return Server(
        name="llama_cpp",
        command=[
            *(str(binary), "--model", str(bf16_gguf(peers))),
            *("--host", "127.0.0.1", "--port", "{port}", "--alias", "demo"),
            *("--threads", str(os.cpu_count() or 1), "--ctx-size", str(SLOTS * CONTEXT)),
            *("--parallel", str(SLOTS), "--no-kv-unified"),
        ],
        model="demo",
        ready_path="/health",
    )
