"""One model as it is served: files found, engines, text side and service put together, and taken down in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from stoker.config import Config, ModelConfig
from stoker.engine.client import Pixels
from stoker.engine.spec import EngineSpec
from stoker.fleet.backend import Launcher, State
from stoker.fleet.external import ExternalLauncher
from stoker.fleet.launcher import Host, LocalLauncher
from stoker.fleet.pool import Pool
from stoker.fleet.ray_launcher import RayLauncher
from stoker.models.info import ModelInfo, read_info
from stoker.models.source import ModelFiles, resolve
from stoker.models.text.model import TextModel
from stoker.obs.metrics import Metrics
from stoker.obs.traces import Traces
from stoker.service.grammar_trial import GrammarTrial
from stoker.service.images import ImageStore
from stoker.service.pipeline import Service


class Found(NamedTuple):
    """A configured model whose files are here. `name` is what clients call it."""

    config: ModelConfig
    files: ModelFiles
    info: ModelInfo

    @property
    def name(self) -> str:
        return self.config.name or self.info.name


def find(config: Config, model: ModelConfig, progress: Callable[[str, float], None]) -> Found:
    """Download what is missing. Blocks; raises ModelError and OSError."""
    files = resolve(
        model.model,
        revision=model.revision,
        data_dir=config.data_path,
        offline=config.offline,
        progress=progress,
        weights=not model.servers,
    )
    return Found(model, files, read_info(files))


def _launcher(config: Config, model: ModelConfig, host: Host, spec: EngineSpec, pixels: Pixels) -> Launcher:
    if model.servers:
        context = min(model.engine.context or spec.info.context, spec.info.context)
        return ExternalLauncher(model.servers, context=context, eos_ids=spec.info.eos_ids)
    if config.fleet.launcher == "local":
        return LocalLauncher(host, spec, zone=model.zone, pixels=pixels)
    gpus = int(model.engine.device.startswith("cuda"))
    return RayLauncher(spec, cpus=model.engine.threads or 1, gpus=gpus, zone=model.zone, pixels=pixels)


class Deployment:
    """`start`, then `service` answers requests, counted in `metrics`, with images from `images`; `close` leaves no
    process. `on_state` hears of the model's state."""

    service: Service

    def __init__(
        self,
        config: Config,
        found: Found,
        host: Host,
        chain_key: bytes,
        metrics: Metrics,
        traces: Traces,
        images: ImageStore,
        on_state: Callable[[State], None],
    ) -> None:
        self.found = found
        self.opened = False
        self._host, self._chain_key = host, chain_key
        self._metrics, self._traces, self._images = metrics, traces, images
        self._trial = GrammarTrial(found.files)
        spec = self._spec(config, found)
        self._scheme = spec.scheme
        self.pool = Pool(
            found.name,
            _launcher(config, found.config, host, spec, images.pixels),
            replicas=_count(found.config),
            recover=config.fleet.recover,
            patience=config.fleet.drain,
            traces=traces,
            on_state=on_state,
        )

    async def start(self) -> None:
        """The engines load by themselves from here on; returns when text can be handled. Raises ModelError."""
        await self.pool.start()
        text = await asyncio.to_thread(TextModel.load, self.found.files)
        self.service = Service(
            text,
            self.found.info,
            self.pool,
            name=self.found.name,
            trial=None if self.found.config.servers else self._trial,
            scheme=self._scheme,
            images=None if self.found.config.servers else self._images,  # ids alone show another server nothing
            metrics=self._metrics,
            traces=self._traces,
        )

        self.opened = True

    def can_become(self, found: Found) -> bool:
        """Whether its replicas can turn into those of `found` one by one: text, caches and streams stay as they are."""
        engine, other = self.found.config.engine, found.config.engine
        return (
            found.info == self.found.info and found.files == self.found.files and other.block_size == engine.block_size
        )

    async def become(self, found: Found, config: Config, say: Callable[[str], None]) -> None:
        """Take over other settings of the same model while it serves. Raises StokerError."""
        old, new = self.found.config, found.config
        self.found = found
        launched = ("engine", "zone", "servers")
        if any(getattr(old, part) != getattr(new, part) for part in launched):
            launcher = _launcher(config, new, self._host, self._spec(config, found), self._images.pixels)
            await self.pool.operations.replace(launcher, say)
        await self.pool.operations.resize(_count(new), say)

    async def close(self) -> None:
        if self.opened:
            self.service.close()
        await self._trial.close()
        await self.pool.stop()

    def _spec(self, config: Config, found: Found) -> EngineSpec:
        return EngineSpec(
            files=found.files,
            info=found.info,
            config=found.config.engine,
            endpoint="",
            chain_key=self._chain_key.hex(),
            log_format=config.log_format,
            log_level=config.log_level,
        )


def _count(model: ModelConfig) -> int:
    return len(model.servers) or model.replicas
