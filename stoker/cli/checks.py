"""The checks of `stoker doctor`: each looks at one thing and never raises. Torch is asked in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stoker.models.source import ModelError, resolve

GIB = 1 << 30
PROBE_SECONDS = 120.0
NEEDED_MEMORY = 2 * GIB
NEEDED_DISK = 1 * GIB
ISA = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX512-VNNI",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "BF16",
    "i8mm": "I8MM",
}
EXTRAS = {
    "gpu": "triton",
    "otel": "opentelemetry.sdk",
    "ray": "ray",
    "mcp": "mcp",
    "nixl": "nixl",
    "peers": "transformers",
}
TOOLS = {
    "Node.js": (("node",), "only `make clients` uses it, for real coding agents"),
    "PostgreSQL": (("psql", "postgres"), "for a later ledger and batch lane; nothing uses it yet"),
    "bubblewrap": (("bwrap",), "for later sandboxed tools; nothing uses it yet"),
    "Chromium": (("chromium", "chromium-browser", "google-chrome"), "for later dashboard tests; nothing uses it yet"),
}

# Runs in a child: importing torch takes seconds, and a broken installation may take the process down.
PROBE = """
import json, torch
from stoker.kernels.native import library
from stoker.models.loader import preferred_dtype
devices = ["cpu"] + [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = str(preferred_dtype(device)).removeprefix("torch.")
native = library.load()
kernels = {"missing": native} if isinstance(native, str) else {"isa": native.best, "team": native.team}
threads = torch.get_num_threads()
found = {"version": torch.__version__, "devices": devices, "dtype": dtype, "threads": threads, "kernels": kernels}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Check:
    """`fail` means that serving is impossible, `warn` that something is missing or slow. `advice` says what to do."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    advice: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(data_path: Path, port: int) -> list[Check]:
    """All checks, in the order in which a person mends things."""
    return [
        python(),
        system(),
        cpu(),
        memory(),
        data_folder(data_path),
        *torch(),
        demo_model(data_path),
        port_free(port),
        extras(),
        *(tool(name) for name in TOOLS),
    ]


def python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def system() -> Check:
    name, machine = platform.system(), platform.machine()
    detail = f"{name} {platform.release()} on {machine}"
    if name == "Linux" and machine in ("x86_64", "aarch64"):
        return Check("Platform", "ok", detail)
    if name == "Windows":
        return Check("Platform", "fail", detail, "run Stoker inside WSL2")
    return Check("Platform", "warn", detail, "not tested here; supported is Linux on x86-64 and arm64")


def cpu() -> Check:
    model, flags = _cpu_info()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    features = [name for flag, name in ISA.items() if flag in flags]
    detail = f"{model} · {cores} cores · {' '.join(features) or 'no vector extension known'}"
    if platform.machine() == "x86_64" and flags and "avx2" not in flags:
        return Check("CPU", "warn", detail, "without AVX2 generation will be slow")
    return Check("CPU", "ok", detail)


def memory() -> Check:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = _meminfo().get("MemAvailable", total)
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    used = _number(Path("/sys/fs/cgroup/memory.current"))
    if limit is not None:  # a container sees the host's memory but dies at its own limit
        total, available = min(total, limit), min(available, limit - (used or 0))
    detail = f"{available / GIB:.1f} GiB available of {total / GIB:.1f} GiB"
    if available < NEEDED_MEMORY:
        return Check("Memory", "warn", detail, "the demo model wants 2 GiB; close something or lower --kv-memory")
    return Check("Memory", "ok", detail)


def data_folder(path: Path) -> Check:
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check("Data folder", "fail", f"{path} cannot be written", "name another place with --data-dir")
    free = shutil.disk_usage(existing).free
    detail = f"{path} · {free / GIB:.1f} GiB free"
    if free < NEEDED_DISK:
        return Check(
            "Data folder", "warn", detail, "models from the hub need space; name another place with --data-dir"
        )
    return Check("Data folder", "ok", detail)


def torch() -> list[Check]:
    """PyTorch, and the native kernels that work beside it."""
    advice = "install it with `make setup` (README, Platforms)"

    def broken(detail: str) -> list[Check]:
        return [Check("PyTorch", "fail", detail, advice)]

    if importlib.util.find_spec("torch") is None:
        return broken("not installed")
    try:
        command = [sys.executable, "-c", PROBE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True)  # noqa: S603
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return broken(f"does not start within {PROBE_SECONDS:.0f} s")
    except (subprocess.CalledProcessError, OSError, ValueError, IndexError) as error:
        words = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return broken(f"does not work: {words[-1] if words else 'no message'}")
    devices = ", ".join(found["devices"])
    detail = f"{found['version']} · {devices} · {found['dtype']} preferred · {found['threads']} threads"
    return [Check("PyTorch", "ok", detail), _kernels(found["kernels"])]


def _kernels(found: dict[str, str]) -> Check:
    if "missing" in found:
        return Check("Kernels", "warn", found["missing"], "plain torch works too, more slowly on a CPU")
    return Check("Kernels", "ok", f"native for {found['isa']}, on {found['team']}")


def demo_model(data_path: Path) -> Check:
    try:
        files = resolve("demo", revision=None, data_dir=data_path, progress=lambda stage, fraction: None)
    except ModelError as error:
        return Check("Demo model", "warn", "not installed", str(error))
    return Check("Demo model", "ok", str(Path(files.root) / (files.gguf or "")))


def port_free(port: int) -> Check:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            return Check("Port", "warn", f"{port}: {error.strerror}", "serve on another one with --port")
    return Check("Port", "ok", f"{port} is free on 127.0.0.1")


def extras() -> Check:
    installed = [extra for extra, module in EXTRAS.items() if _installed(module)]
    absent = [extra for extra in EXTRAS if extra not in installed]
    return Check("Extras", "ok", f"installed: {', '.join(installed) or 'none'} · not: {', '.join(absent) or 'none'}")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False


def tool(name: str) -> Check:
    programs, use = TOOLS[name]
    for program in programs:
        if path := shutil.which(program):
            return Check(name, "ok", path)
    return Check(name, "warn", "not found", use)


def _cpu_info() -> tuple[str, set[str]]:
    """Model name and feature flags, as far as the system tells."""
    info: dict[str, str] = {}
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return info.get("model name") or platform.processor() or platform.machine(), flags


def _meminfo() -> dict[str, int]:
    """Bytes by name; empty where the system has no such file."""
    lines = (line.split() for line in _text(Path("/proc/meminfo")).splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
