"""`stoker doctor`: each check on hosts to praise, to warn about and to refuse; the command as a program sees it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli import checks

RUN = "import sys; from stoker.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"


def doctor(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, "doctor", *args], capture_output=True, text=True, timeout=120)


def pretend(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """System files read as `files`; those not named are absent."""
    monkeypatch.setattr(checks, "_text", lambda path: files.get(str(path), ""))


def test_json_tells_what_the_page_tells(tmp_path: Path) -> None:
    done = doctor("--json", "--data-dir", str(tmp_path))
    report = json.loads(done.stdout)
    assert not done.stderr
    assert report["ok"] is (done.returncode == 0)
    assert report["ok"] is all(check["status"] != "fail" for check in report["checks"])
    found = {check["name"]: check for check in report["checks"]}
    assert found.keys() >= {"Python", "Platform", "CPU", "Memory", "Data folder", "PyTorch", "Kernels"}
    assert found.keys() >= {"Demo model", "Port"}
    assert found["PyTorch"]["status"] == "ok"
    assert "preferred" in found["PyTorch"]["detail"]
    assert str(tmp_path) in found["Data folder"]["detail"]
    assert list(tmp_path.iterdir()) == [], "looking changes nothing"


def test_the_page_says_when_serving_is_impossible(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = doctor("--data-dir", str(tmp_path / "file" / "data"))
    assert done.returncode == 1
    assert "✗ Data folder" in done.stdout
    assert "--data-dir" in done.stdout
    assert "cannot work" in done.stdout.splitlines()[-1]


def test_a_port_in_use_is_a_warning() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert checks.port_free(port).status == "warn"
    assert checks.port_free(port).status == "ok"


def test_memory_of_a_container_is_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    host = "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n"
    pretend(monkeypatch, {"/proc/meminfo": host})
    assert checks.memory().detail.startswith("32.0 GiB available")
    files = {"/proc/meminfo": host, "/sys/fs/cgroup/memory.max": "4294967296\n"}
    pretend(monkeypatch, {**files, "/sys/fs/cgroup/memory.current": "1073741824\n"})
    assert checks.memory().detail == "3.0 GiB available of 4.0 GiB"
    assert checks.memory().status == "ok"
    pretend(monkeypatch, {**files, "/sys/fs/cgroup/memory.current": "4000000000\n"})
    assert checks.memory().status == "warn"
    pretend(monkeypatch, {"/proc/meminfo": host, "/sys/fs/cgroup/memory.max": "max\n"})
    assert checks.memory().detail.startswith("32.0 GiB available")


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "status", "shown"),
    [
        ("x86_64", "model name : Big\nflags : sse2 avx2 avx512f avx512_bf16 amx_bf16\n", "ok", "AVX512-BF16 AMX-BF16"),
        ("x86_64", "model name : Old\nflags : sse2\n", "warn", "no vector extension"),
        ("aarch64", "Features : fp asimd bf16 i8mm\n", "ok", "NEON BF16 I8MM"),
        ("x86_64", "", "ok", "cores"),
    ],
)
def test_cpu(monkeypatch: pytest.MonkeyPatch, machine: str, cpuinfo: str, status: str, shown: str) -> None:
    monkeypatch.setattr(checks.platform, "machine", lambda: machine)
    pretend(monkeypatch, {"/proc/cpuinfo": cpuinfo})
    found = checks.cpu()
    assert (found.status, shown in found.detail) == (status, True)


@pytest.mark.parametrize(
    ("system", "machine", "status"),
    [
        ("Linux", "x86_64", "ok"),
        ("Linux", "aarch64", "ok"),
        ("Linux", "riscv64", "warn"),
        ("Darwin", "arm64", "warn"),
        ("Windows", "AMD64", "fail"),
    ],
)
def test_platforms(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, status: str) -> None:
    monkeypatch.setattr(checks.platform, "system", lambda: system)
    monkeypatch.setattr(checks.platform, "machine", lambda: machine)
    assert checks.system().status == status


@pytest.mark.parametrize(
    ("probe", "shown"),
    [
        ("raise ImportError('libgomp is missing')", "ImportError: libgomp is missing"),
        ("import os; os.abort()", "SIGABRT"),
        ("print('no json')", "does not work"),
        ("", "does not work"),
        ("import time; time.sleep(60)", "does not start within"),
    ],
)
def test_a_broken_torch_is_a_failure_with_its_reason(monkeypatch: pytest.MonkeyPatch, probe: str, shown: str) -> None:
    monkeypatch.setattr(checks, "PROBE", probe)
    monkeypatch.setattr(checks, "PROBE_SECONDS", 1.0 if "sleep" in probe else 60.0)
    (found,) = checks.torch()
    assert found.status == "fail"
    assert shown in found.detail
    assert "\n" not in found.detail
    assert found.advice


@pytest.mark.parametrize(
    ("kernels", "status", "shown"),
    [
        ({"missing": "not built: run this"}, "warn", "not built: run this"),
        ({"isa": "avx2", "team": "torch's threads"}, "ok", "native for avx2, on torch's threads"),
    ],
)
def test_kernels_that_are_not_there_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, kernels: dict[str, str], status: str, shown: str
) -> None:
    answer = {"version": "1", "devices": ["cpu"], "dtype": "x", "threads": 1, "kernels": kernels}
    monkeypatch.setattr(checks, "PROBE", f"print({json.dumps(answer)!r})")
    torch, found = checks.torch()
    assert (torch.status, found.status, found.detail) == ("ok", status, shown)


def test_tools_are_looked_for_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.tool("bubblewrap").status == "warn"
    (tmp_path / "bwrap").touch(mode=0o755)
    assert checks.tool("bubblewrap").detail == str(tmp_path / "bwrap")


def test_nearly_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "NEEDED_DISK", 1 << 60)
    assert checks.data_folder(tmp_path / "not" / "there" / "yet").status == "warn"
