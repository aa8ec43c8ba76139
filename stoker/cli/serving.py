"""The composition root: engine process, text, service and gateway put together, kept running, taken down in order."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import uvloop

from stoker.cli.output import fail
from stoker.cli.screen import Screen
from stoker.config import Config, ConfigError
from stoker.engine.spec import EngineSpec
from stoker.fleet.backend import Down, State
from stoker.fleet.supervisor import LocalReplica
from stoker.gateway.app import create_app
from stoker.gateway.server import serve as serve_http
from stoker.models.info import ModelInfo, read_info
from stoker.models.source import ModelError, ModelFiles, resolve
from stoker.models.text.model import TextModel
from stoker.obs.log import setup
from stoker.service.grammar_trial import GrammarTrial
from stoker.service.pipeline import Service


def run(config: Config) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status. Blocks."""
    setup(config.log_format, config.log_level)
    screen = Screen(config)
    try:
        config.data_path.mkdir(parents=True, exist_ok=True)
        files = resolve(config.model, revision=config.revision, data_dir=config.data_path, progress=screen.progress)
        info = read_info(files)
    except (ModelError, OSError) as error:
        screen.close()
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        screen.close()
        return 130
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, files, info, screen))


async def _serve(config: Config, files: ModelFiles, info: ModelInfo, screen: Screen) -> int:
    stop = asyncio.Event()
    failure: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    key = chain_key(config.data_path)

    def spec(endpoint: str) -> EngineSpec:
        return EngineSpec(
            files=files,
            info=info,
            config=config.engine,
            endpoint=endpoint,
            chain_key=key.hex(),
            log_format=config.log_format,
            log_level=config.log_level,
        )

    def on_state(state: State) -> None:
        screen.state(state)
        if isinstance(state, Down) and state.final and not stop.is_set():
            failure.append(state.reason)
            stop.set()

    replica = LocalReplica(spec, on_state=on_state)
    await replica.start()
    try:
        text = await asyncio.to_thread(TextModel.load, files)
        trial = GrammarTrial(files)
        service = Service(text, info, replica, name=config.name, trial=trial)
        screen.named(service.name)
        app = create_app(service, config.gateway, config.tenants)
        try:
            await serve_http(app, config.gateway, started=screen.listening, stop=stop)
        finally:
            service.close()
            await trial.close()
    except (OSError, ConfigError, ModelError) as error:
        failure.append(str(error))
    finally:
        screen.close()
        await replica.stop()
    if failure:
        fail(failure[0])
        return 1
    return 0


def chain_key(folder: Path) -> bytes:
    """The key of the hash chain: made once per data folder, so the chain is stable over restarts."""
    path = folder / "chain.key"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=folder, prefix="chain.key.") as file:  # 0600 from the start
            file.write(secrets.token_bytes(32))
            file.flush()
            with suppress(FileExistsError):  # another server of this folder was quicker: its key counts
                os.link(file.name, path)
    return path.read_bytes()
