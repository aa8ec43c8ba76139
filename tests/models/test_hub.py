"""Downloads against a small hub on 127.0.0.1: what is fetched, resumed, kept, and what a failure says."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from stoker.models.source import ModelFiles

BIG = 24 << 20  # the client writes 10 MB at a time
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FETCH = """
import json, logging, sys
from pathlib import Path
from stoker.models.source import resolve, ModelError
seen, told = [], []
class Listener(logging.Handler):
    def emit(self, record):
        if record.action == "model_file":
            told.append(record.getMessage().split())
logging.getLogger("stoker").addHandler(Listener())
logging.getLogger("stoker").setLevel("INFO")
try:
    files = resolve(sys.argv[1], revision=sys.argv[3] or None, data_dir=Path(sys.argv[2]), offline=len(sys.argv) > 4,
                    progress=lambda stage, fraction: seen.append([stage, fraction]))
    print(json.dumps({"root": files.root, "name": files.name, "seen": seen, "told": told}))
except ModelError as error:
    print(json.dumps({"error": str(error)}))
"""


@dataclass
class Hub:
    """A repository to serve. `requests` are (path, Range header). A large file comes only half at first: then the
    connection breaks (`cut`) or falls silent until `go_on` is set. Of large files the hub states the SHA-256, which is
    `lie` if that is set."""

    files: dict[str, bytes]
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    cut: bool = False
    go_on: threading.Event = field(default_factory=threading.Event)
    status: int = 200
    stall: float = 0.0
    lie: str | None = None
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.hub
        path = self.path.partition("?")[0]
        hub.requests.append((path, self.headers.get("Range")))
        time.sleep(hub.stall)
        if hub.status != 200:
            code = {404: "RepoNotFound", 403: "GatedRepo"}[hub.status]
            self.answer(hub.status, b"{}", X_Error_Code=code)
        elif path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.files.items()
            ]
            self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        elif path.startswith("/api/models/org/tiny"):
            siblings = [
                {"rfilename": name, "size": len(data), "lfs": self.stated(data) if "safetensors" in name else None}
                for name, data in hub.files.items()
            ]
            info = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}
            self.answer(200, json.dumps(info).encode(), Content_Type="application/json")
        elif (name := path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")) in hub.files:
            self.file(hub, name)
        else:
            self.answer(404, b"{}")

    def stated(self, data: bytes) -> dict[str, object]:
        return {"sha256": self.hub.lie or sha256(data), "size": len(data), "pointerSize": 134}

    def file(self, hub: Hub, name: str) -> None:
        data = hub.files[name]
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if self.command == "GET" and len(data) == BIG and (hub.cut or not hub.go_on.is_set()):
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            if not hub.cut:
                hub.go_on.wait(30)
            hub.cut = False
            self.close_connection = True
            return
        self.answer(206 if start else 200, data[start:], **headers)


@pytest.fixture
def hub(tiny_llama: ModelFiles) -> Iterator[Hub]:
    files = {file.name: file.read_bytes() for file in Path(tiny_llama.root).iterdir()}
    extra = {"modeling_tiny.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "README.md": b"hello"}
    original = {"original/model.safetensors": b"twice", "consolidated.safetensors": b"thrice"}
    index = json.dumps({"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}).encode()
    hub = Hub({**files, **extra, **original, "model.safetensors.index.json": index})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.go_on.set()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def start(
    address: str, data: Path, model: str = "org/tiny", revision: str = "", *flags: str, **extra: str
) -> subprocess.Popen[str]:
    hub = {"HF_ENDPOINT": address, "HF_HOME": str(data / "hf"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", FETCH, model, str(data), revision, *flags]
    return subprocess.Popen(command, env={**os.environ, **hub, **extra}, stdout=subprocess.PIPE, text=True)


def fetch(
    address: str, data: Path, model: str = "org/tiny", revision: str = "", *flags: str, **extra: str
) -> dict[str, object]:
    with start(address, data, model, revision, *flags, **extra) as process:
        output, _ = process.communicate(timeout=60)
    return json.loads(output)


def test_only_data_is_fetched_and_then_kept(hub: Hub, tmp_path: Path, tiny_llama: ModelFiles) -> None:
    got = fetch(hub.address, tmp_path)
    assert got["name"] == "org/tiny"
    root = Path(str(got["root"]))
    here = {file.name for file in root.iterdir() if file.is_file()}
    wanted = {file.name for file in Path(tiny_llama.root).iterdir()} | {"model.safetensors.index.json"}
    assert here == wanted | {"stoker-download.json", ".lock"}
    assert all((root / name).read_bytes() == hub.files[name] for name in wanted)
    seen = got["seen"]
    assert isinstance(seen, list)
    fetched = [fraction for stage, fraction in seen if stage == "downloading org/tiny"]
    assert fetched == sorted(fetched)
    assert (fetched[0], fetched[-1]) == (0.0, 1.0)
    assert "checking what was downloaded" in [stage for stage, _ in seen]
    told = [[sha256(hub.files[name]), name] for name in sorted(wanted)]
    assert sorted(got["told"], key=lambda line: line[1]) == told, "every file's SHA-256 is shown"  # type: ignore[arg-type]
    marker = json.loads((root / "stoker-download.json").read_text())
    assert {name: file["sha256"] for name, file in marker["files"].items()} == {name: digest for digest, name in told}
    asked = len(hub.requests)
    assert fetch(hub.address, tmp_path)["root"] == str(root)
    assert len(hub.requests) == asked, "a whole model is used without asking the hub"
    assert fetch("http://127.0.0.1:9", tmp_path)["root"] == str(root)


def test_a_lost_connection_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.files["model.safetensors"] = bytes(BIG)
    hub.cut = True
    root = Path(str(fetch(hub.address, tmp_path)["root"]))
    assert (root / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    ranges = [area for path, area in hub.requests if path.endswith("model.safetensors") and area]
    assert ranges
    assert all(area.startswith("bytes=") and not area.startswith("bytes=0-") for area in ranges)


def test_a_killed_download_keeps_whole_files_and_leaves_no_scraps(hub: Hub, tmp_path: Path) -> None:
    hub.files["model.safetensors"] = bytes(BIG)
    hub.go_on.clear()
    process = start(hub.address, tmp_path)
    deadline = time.monotonic() + 30
    while not (
        any(part.stat().st_size for part in tmp_path.rglob("*.incomplete")) and any(tmp_path.rglob("tokenizer.json"))
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "another process" in str(fetch(hub.address, tmp_path)["error"])
    process.kill()
    process.communicate()
    hub.go_on.set()
    hub.requests.clear()
    root = Path(str(fetch(hub.address, tmp_path)["root"]))
    assert (root / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert not list(tmp_path.rglob("*.incomplete"))
    assert not any(path.endswith("tokenizer.json") for path, _ in hub.requests)


def test_a_damaged_copy_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    root = Path(str(fetch(hub.address, tmp_path)["root"]))
    (root / "tokenizer.json").unlink()
    assert fetch(hub.address, tmp_path)["root"] == str(root)
    assert (root / "tokenizer.json").read_bytes() == hub.files["tokenizer.json"]


def test_a_file_that_is_not_what_the_hub_says_is_removed(hub: Hub, tmp_path: Path) -> None:
    hub.lie = "5" * 64
    error = str(fetch(hub.address, tmp_path)["error"])
    assert "model.safetensors has the SHA-256 " + sha256(hub.files["model.safetensors"]) in error
    assert "5" * 64 in error
    assert not list(tmp_path.rglob("model.safetensors"))
    hub.lie = None
    root = Path(str(fetch(hub.address, tmp_path)["root"]))
    assert (root / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_offline_no_hub_is_asked(hub: Hub, tmp_path: Path, how: str) -> None:
    def offline() -> dict[str, object]:
        if how == "flag":
            return fetch(hub.address, tmp_path, "org/tiny", COMMIT, "offline")
        return fetch(hub.address, tmp_path, "org/tiny", COMMIT, HF_HUB_OFFLINE="1")

    error = str(offline()["error"])
    assert "is not here, and no hub is asked offline" in error
    assert "give its path" in error
    assert not hub.requests
    online = fetch(hub.address, tmp_path, "org/tiny", COMMIT)
    hub.requests.clear()
    assert offline()["root"] == online["root"]
    assert not hub.requests


def test_each_revision_is_a_folder_of_its_own(hub: Hub, tmp_path: Path) -> None:
    """What was fetched as a branch stays as it was when the branch moves on; another revision is fetched anew."""
    first = fetch(hub.address, tmp_path, "org/tiny", "main")["root"]
    before = hub.files["config.json"]
    hub.files["config.json"] = before.replace(b"{", b"{ ", 1)
    assert fetch(hub.address, tmp_path, "org/tiny", "main")["root"] == first
    assert (Path(str(first)) / "config.json").read_bytes() == before
    second = fetch(hub.address, tmp_path, "org/tiny", "v2")["root"]
    assert second != first
    assert (Path(str(second)) / "config.json").read_bytes() == hub.files["config.json"]


@pytest.mark.parametrize(
    ("lacking", "words"), [("config.json", "no config.json"), ("model.safetensors", "safetensors")]
)
def test_an_unusable_repository_is_refused_before_its_weights(
    hub: Hub, tmp_path: Path, lacking: str, words: str
) -> None:
    hub.files = {name: data for name, data in hub.files.items() if not name.endswith(lacking) and "index" not in name}
    hub.files.pop("consolidated.safetensors", None)
    assert words in str(fetch(hub.address, tmp_path)["error"])
    assert not any("/resolve/" in path for path, _ in hub.requests)


@pytest.mark.parametrize(("status", "words"), [(404, "the hub has no model org/tiny"), (403, "gated")])
def test_refusals_are_explained(hub: Hub, tmp_path: Path, status: int, words: str) -> None:
    hub.status = status
    assert words in str(fetch(hub.address, tmp_path)["error"])


def test_no_hub_fails_soon_and_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for model in ("org/tiny", "Some-Org/Model_1.5B"):
        began = time.monotonic()
        error = str(fetch(address, tmp_path, model)["error"])
        assert time.monotonic() - began < 10
        assert model in error
        assert "no hub could be reached" in error
        assert "copy the model's folder here and give its path" in error


def test_a_silent_hub_fails_soon(hub: Hub, tmp_path: Path) -> None:
    hub.stall = 8.0
    began = time.monotonic()
    error = str(fetch(hub.address, tmp_path)["error"])
    assert time.monotonic() - began < 15
    assert "org/tiny" in error


@pytest.mark.parametrize("revision", ["../../etc", "/main", "a b", "x/../y"])
def test_a_revision_cannot_leave_the_folder(tmp_path: Path, revision: str) -> None:
    assert "is not a revision" in str(fetch("http://127.0.0.1:9", tmp_path, revision=revision)["error"])
