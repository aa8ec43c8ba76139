"""stoker drain, restart --rolling and reload against a real server under load: no request fails."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_server import Server

from stoker.cli.admin_client import AdminClient, AdminError
from stoker.gateway.admin import ModelStatus
from stoker.models.source import ModelFiles

KEYS = {"alice": "sk-alice", "root": "sk-root", "bob": "sk-bob"}


def toml(files: ModelFiles, *, replicas: int, aliases: tuple[str, ...] = (), tenants: tuple[str, ...], more: str = ""):
    text = f"""
        [fleet]
        drain = 1.0
        [engine]
        dtype = "float32"
        [[models]]
        name = "tiny"
        model = "{files.root}"
        replicas = {replicas}
        aliases = {json.dumps(list(aliases))}
        """
    for name in tenants:
        digest = hashlib.sha256(KEYS[name].encode()).hexdigest()
        text += f'[[tenants]]\nname = "{name}"\nkey_sha256 = "{digest}"\nadmin = {str(name == "root").lower()}\n'
    return textwrap.dedent(text) + textwrap.dedent(more)


class Rig:
    def __init__(self, server: Server, folder: Path, files: ModelFiles) -> None:
        self.server, self.folder, self.files = server, folder, files

    def configure(self, **settings: Any) -> None:
        (self.folder / "stoker.toml").write_text(toml(self.files, **settings), encoding="utf-8")

    def stoker(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stoker.cli", *command],
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
            env={**os.environ, **env},
        )

    async def operate(self, what: str, **ask: Any) -> str:
        """What the commands do, without the time that it takes to start them."""
        said: list[str] = []
        await AdminClient(self.folder, None, None).operate(what, ask, said.append)
        return "\n".join(said)

    async def status(self) -> ModelStatus:
        return (await AdminClient(self.folder, None, None).status()).models["tiny"]

    def api(self, tenant: str = "alice") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.server.url}/v1", api_key=KEYS[tenant], max_retries=0, timeout=120.0)


@pytest.fixture(scope="module")
def rig(tiny_llama: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("ops")
    config = folder / "stoker.toml"
    config.write_text(toml(tiny_llama, replicas=2, tenants=("alice", "root")), encoding="utf-8")
    server = Server(folder, str(config)).wait_ready()
    rig = Rig(server, folder, tiny_llama)
    end = time.monotonic() + 60.0
    while any(replica.status != "ready" for replica in asyncio.run(rig.status()).replicas.values()):
        assert time.monotonic() < end
        time.sleep(0.05)
    yield rig
    server.stop()


@asynccontextmanager
async def load(rig: Rig) -> AsyncIterator[list[int]]:
    """Streams without a pause, some far longer than a drain waits; each must be whole."""
    counts, stop = [0] * 4, asyncio.Event()
    async with rig.api() as api:

        async def session(number: int) -> None:
            while not stop.is_set():
                tokens = 700 if number == 0 else 30
                stream = await api.chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": f"Question {counts[number]} of {number}."}],
                    max_tokens=tokens,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"ignore_eos": True},
                    extra_headers={"x-session-id": f"s{number}"},
                )
                usage = None
                async for chunk in stream:
                    usage = chunk.usage or usage
                assert usage is not None
                assert usage.completion_tokens == tokens
                counts[number] += 1

        sessions = [asyncio.create_task(session(number)) for number in range(4)]
        try:
            while not all(counts[1:]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            yield counts
        finally:
            stop.set()
        await asyncio.gather(*sessions)


async def test_drain_undo_and_a_rolling_restart_fail_no_request(rig: Rig) -> None:
    before = set(rig.server.engine_pids())
    async with load(rig):
        done = await asyncio.to_thread(rig.stoker, "drain", "tiny/0", "--data-dir", str(rig.folder))
        assert "tiny/0 is drained" in done.stdout
        replicas = (await rig.status()).replicas
        assert {name: replica.status for name, replica in replicas.items()} == {"tiny/0": "drained", "tiny/1": "ready"}
        with pytest.raises(AdminError, match="only replica that serves"):
            await rig.operate("drain", name="tiny/1")
        assert "tiny/0 is ready" in await rig.operate("drain", name="tiny/0", undo=True)
        done = await asyncio.to_thread(rig.stoker, "restart", "--rolling", "--data-dir", str(rig.folder))
        assert done.stdout.count("is ready") == 2
    status = await rig.status()
    assert {replica.status for replica in status.replicas.values()} == {"ready"}
    assert sum(replica.in_flight for replica in status.replicas.values()) == 0
    assert status.moved > 0
    assert not before & set(rig.server.engine_pids())


async def test_reload_changes_replicas_aliases_and_tenants_and_fails_no_request(rig: Rig) -> None:
    async with load(rig), rig.api("bob") as bob, rig.api() as alice:
        with pytest.raises(openai.AuthenticationError):
            await bob.models.list()
        rig.configure(
            replicas=1, aliases=("gpt",), tenants=("alice", "root", "bob"), more="[gateway]\nmax_body = 1000000"
        )
        done = await asyncio.to_thread(rig.stoker, "reload", "--data-dir", str(rig.folder))
        assert "tiny/1 is gone" in done.stdout
        assert "gateway has changed" in done.stdout
        assert {model.id for model in (await bob.models.list()).data} == {"tiny", "gpt"}
        reply = await bob.chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": "hi"}], max_tokens=2
        )
        assert reply.model == "tiny"
        (rig.folder / "stoker.toml").write_text("[[models]]\nmodle = 'x'", encoding="utf-8")
        with pytest.raises(AdminError, match=r"Nothing was changed: .*modle"):
            await rig.operate("reload")
        second = f'[[models]]\nname = "second"\nmodel = "{rig.files.root}"\n[models.engine]\ndtype = "float32"'
        rig.configure(replicas=1, tenants=("alice", "root"), more=second)
        assert "second is served" in await rig.operate("reload")
        assert {model.id for model in (await alice.models.list()).data} == {"tiny", "second"}
        with pytest.raises(openai.AuthenticationError):
            await bob.models.list()
        await alice.completions.create(model="second", prompt="a", max_tokens=2)
        rig.configure(replicas=2, tenants=("alice", "root"))
        said = await rig.operate("reload")
        assert "second is no longer served" in said
        assert "tiny/1 is ready" in said


def test_only_this_user_and_admins_operate_it(rig: Rig) -> None:
    mode = (rig.folder / "admin.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    url = ("status", "--json", "--admin-url", rig.server.url)
    assert json.loads(rig.stoker(*url, STOKER_ADMIN_KEY=KEYS["root"]).stdout)["models"]["tiny"]["status"] == "ready"
    for key, said in ((KEYS["alice"], "may not operate"), ("sk-wrong", "not known")):
        done = rig.stoker(*url, STOKER_ADMIN_KEY=key)
        assert done.returncode == 1
        assert said in done.stderr
    shown = rig.stoker("status", "--data-dir", str(rig.folder)).stdout
    assert "tiny/0" in shown
    nobody = rig.stoker("status", "--data-dir", str(rig.folder / "nothing"))
    assert nobody.returncode == 1
    assert "no server answers" in nobody.stderr
