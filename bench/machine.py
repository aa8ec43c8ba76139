"""The machine in words, for reports: a figure without it says nothing."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


def describe() -> dict[str, str]:
    facts = {"cpu": platform.processor() or platform.machine(), "cores": str(os.cpu_count() or 0)}
    with suppress(OSError):
        entries = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        cpu = {key.strip(): value.strip() for key, _, value in entries}
        facts["cpu"] = cpu.get("model name", facts["cpu"])
        flags = cpu.get("flags", "").split()
        facts["features"] = " ".join(name for name in FEATURES if name in flags)
    with suppress(OSError, ValueError):
        facts["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    with suppress(OSError):
        facts["load before"] = f"{os.getloadavg()[0]:.2f} (others' work slows all peers, not evenly)"
    facts["system"] = f"{platform.system()} {platform.release()}, Python {sys.version.split()[0]}"
    return facts
