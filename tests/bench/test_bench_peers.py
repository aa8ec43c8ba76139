"""The harness end to end against peers made for the purpose: some work, some die, one is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import peers
from bench.adapters import llama_cpp, openvino, vllm_cpu
from bench.adapters.base import Missing, Server, Worker
from bench.processes import process_tree, running

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
        made = body["max_tokens"]
        events = [{"choices": [{"text": "x"}]}] * made
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": made}
        events.append({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}}})
        for event in events:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")
    def log_message(self, *args):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
WORKER = """
import sys, time
from bench.workers.loop import claim_stdout, serve
from bench.workloads import Timing, Timings

class Engine:
    def single(self, prompt, output):
        print("a library that talks")
        now = time.perf_counter()
        return Timings([Timing(now, now + 1, now + 2, len(prompt), output)])
    def concurrent(self, prompts, output):
        raise RuntimeError("out of breath")
    def agent(self, sessions, output):
        return None

answers = claim_stdout()
serve(Engine(), answers)
"""


@pytest.fixture
def contestants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    (tmp_path / "talking_worker.py").write_text(WORKER)
    monkeypatch.setattr(
        peers,
        "ADAPTERS",
        {
            "stoker": lambda folder: Server("stoker", [sys.executable, str(server), "{port}"], model="m"),
            "dead": lambda folder: Server("dead", [sys.executable, "-c", "raise SystemExit('bad luck')"], model="m"),
            "worker": lambda folder: Worker(
                "worker", Path(sys.executable), "talking_worker", folder, env={"PYTHONPATH": str(tmp_path)}
            ),
            "gone": lambda folder: Missing("gone", "make it so"),
        },
    )


@pytest.mark.usefixtures("contestants")
def test_a_run_measures_reports_and_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    names = "stoker,dead,worker,gone"
    code = peers.main(["--json", str(file), "--only", "a,c,d,e,f", "--peers", names, "--rounds", "2", "--quick"])
    report = json.loads(file.read_bytes())
    assert set(report["values"]["stoker"]) >= {"decode_tok_s", "total_tok_s", "agent_wall_s", "cold_s"}
    assert all(len(values) == 2 for values in report["values"]["stoker"].values())
    assert report["missing"] == {"gone": "make it so"}
    assert report["values"]["worker"]["ttft_s"] == [1.0, 1.0]
    assert len(report["failed"]["worker"]) == 2
    assert "RuntimeError: out of breath" in report["failed"]["worker"][0]
    assert "a library that talks" in report["failed"]["worker"][0]
    assert len(report["failed"]["dead"]) == 2
    assert "bad luck" in report["failed"]["dead"][0]
    # This server never reuses a prefix, so the cache bar is missed, and that is what ok says.
    assert (report["ok"], code) == (False, 1)
    assert "cached of possible" in report["figure"]
    assert "missing: gone: make it so" in capsys.readouterr().out


@pytest.mark.usefixtures("contestants")
def test_only_what_was_asked_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert peers.main(["--json", str(file), "--only", "b", "--peers", "stoker", "--rounds", "1", "--quick"]) == 0
    assert set(json.loads(file.read_bytes())["values"]["stoker"]) == {"prefill_tok_s"}


@pytest.mark.parametrize(
    "arguments", [["--only", "a,z"], ["--only", ""], ["--peers", "nobody"], ["--rounds", "0"], ["--rounds", "x"]]
)
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        peers.main(arguments)
    assert "usage" in capsys.readouterr().err


def test_a_peer_that_is_not_built_says_how_to_get_it(tmp_path: Path) -> None:
    for adapter in (llama_cpp, vllm_cpu, openvino):
        found = adapter.peer(tmp_path)
        assert isinstance(found, Missing)
        assert f"make bench-peer-{found.name}" in found.how


async def test_the_whole_tree_ends_with_the_block(tmp_path: Path) -> None:
    # A child in a session of its own, which ignores the polite signal, and outlives its parent.
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys, time;"
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True, stdout=subprocess.PIPE);"
        "c.stdout.readline(); print(c.pid, flush=True); time.sleep(60)"
    )
    async with running([sys.executable, "-c", parent], env={}, log=tmp_path / "log", pipes=True) as process:
        child_pid = int(await process.read_line(20))
        assert {process.pid, child_pid} <= set(process_tree(process.pid))
        assert process.memory() > 5 << 20
    assert process_tree(process.pid) == []
    assert process_tree(child_pid) == []
