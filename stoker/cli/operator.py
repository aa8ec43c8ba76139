"""The models that a server serves, as they are now, and how they become what the configuration says.

Owns the deployments and the catalog's contents; is the `Operator` behind the admin routes. What happens to replicas in
detail is in `fleet/operations.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import msgspec

from stoker import __version__
from stoker.cli.deployment import Deployment, Found, find
from stoker.config import Config, ConfigError
from stoker.fleet.backend import Down, Starting, State
from stoker.fleet.launcher import Host
from stoker.gateway.admin import ModelStatus, Say, ServerStatus
from stoker.models.source import ModelError
from stoker.service.catalog import Catalog
from stoker.service.tenants import Tenants
from stoker.types.errors import ErrorKind, StokerError, invalid

FIXED = ("gateway", "fleet", "traces", "data_dir", "log_format", "log_level")  # read once, when the server starts

Make = Callable[[Config, Found, Callable[[State], None]], Deployment]


class ServerOperator:
    """`reread` gives the configuration as it is now, `make` a deployment that is not started. One change of models at
    a time."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        tenants: Tenants,
        host: Host,
        *,
        make: Make,
        reread: Callable[[], Config],
    ) -> None:
        self.deployments: dict[str, Deployment] = {}
        self._config = config
        self._catalog = catalog
        self._tenants = tenants
        self._host = host
        self._make = make
        self._reread = reread
        self._began = time.monotonic()
        self._busy = asyncio.Lock()

    async def open(self, found: Iterable[Found], on_state: Callable[[str, State], None]) -> None:
        """Serve these models. Raises ModelError and ConfigError."""
        for model in found:
            name = model.name
            if name in self.deployments:
                raise ConfigError(f"models: the name {name!r} is taken")
            deployment = self._make(self._config, model, lambda state, name=name: on_state(name, state))
            self.deployments[name] = deployment
            await deployment.start()
            self._publish()

    async def close(self) -> None:
        await asyncio.gather(*(deployment.close() for deployment in self.deployments.values()))

    def status(self) -> ServerStatus:
        return ServerStatus(
            version=__version__,
            seconds=round(time.monotonic() - self._began, 1),
            models={name: _status(deployment) for name, deployment in self.deployments.items()},
        )

    async def drain(self, name: str, say: Say) -> None:
        await self._of_replica(name).pool.operations.drain(name, say)

    async def undo(self, name: str, say: Say) -> None:
        await self._of_replica(name).pool.operations.undo(name, say)

    async def restart(self, name: str | None, say: Say) -> None:
        if name is None or name in self.deployments:
            for model in [*self.deployments] if name is None else [name]:
                await self.deployments[model].pool.operations.restart(None, say)
        else:
            await self._of_replica(name).pool.operations.restart(name, say)

    async def reload(self, say: Say) -> None:
        async with self._busy:
            try:
                config = await asyncio.to_thread(self._reread)
                found = [
                    await asyncio.to_thread(find, config, model, lambda stage, fraction: None)
                    for model in config.models
                ]
                names = [model.name for model in found]
                if len(set(names)) < len(names):
                    raise ConfigError("models: two of them have the same name")
                self._tenants.replace(config.tenants)
            except (ConfigError, ModelError, OSError) as error:
                raise invalid("invalid_configuration", f"Nothing was changed: {error}") from error
            if config.tenants != self._config.tenants:
                say(f"{len(self._tenants)} tenants")
            for part in FIXED:
                if getattr(config, part) != getattr(self._config, part):
                    say(f"{part} has changed; that takes effect when the server is started anew")
            kept = {part: getattr(self._config, part) for part in FIXED}
            self._config = msgspec.structs.replace(config, **kept)
            await self._become(found, say)

    async def _become(self, found: list[Found], say: Say) -> None:
        """These models, with their settings, and no others."""
        self._host.engines = sum(model.config.replicas for model in found)
        wanted = {model.name: model for model in found}
        for name in [name for name in self.deployments if name not in wanted]:
            gone = self.deployments.pop(name)
            self._publish()
            await self._end(gone, say)
            say(f"{name} is no longer served")
        for name, model in wanted.items():
            old = self.deployments.get(name)
            if old is None or not old.can_become(model):
                await self._open(model, say)
            elif old.found != model:
                await old.become(model, self._config, say)
                self._publish()
        self.deployments = {name: self.deployments[name] for name in wanted}
        self._publish()

    async def _open(self, model: Found, say: Say) -> None:
        """Serve a model that is new, or another one under a name: what had the name goes on until this one is ready."""
        say(f"{model.name} is loaded")
        fresh = self._make(self._config, model, lambda state: None)
        try:
            await fresh.start()
            state = await fresh.pool.ready()
            if isinstance(state, Down):
                raise StokerError(
                    ErrorKind.UNAVAILABLE, "model_failed", f"{model.name} cannot be served: {state.reason}"
                )
        except ModelError as error:
            await fresh.close()
            raise invalid("model_failed", f"{model.name} cannot be served: {error}") from error
        except BaseException:
            await fresh.close()
            raise
        old = self.deployments.get(model.name)
        self.deployments[model.name] = fresh
        self._publish()
        say(f"{model.name} is served")
        if old is not None:
            await self._end(old, say)

    async def _end(self, deployment: Deployment, say: Say) -> None:
        """Nothing new leads there any more: let it finish what it has."""
        await deployment.pool.operations.finish(say)
        await deployment.close()

    def _publish(self) -> None:
        """Let the names lead where they should. Raises ConfigError if one leads to two models."""
        served = [deployment for deployment in self.deployments.values() if deployment.opened]
        try:
            self._catalog.replace((deployment.service, deployment.found.config.aliases) for deployment in served)
        except ValueError as error:
            raise ConfigError(f"models: {error}") from error

    def _of_replica(self, name: str) -> Deployment:
        deployment = self.deployments.get(name.rpartition("/")[0])
        if deployment is None:
            known = ", ".join(name for model in self.deployments.values() for name in model.pool.members)
            raise StokerError(
                ErrorKind.NOT_FOUND, "unknown_replica", f"There is no replica '{name}'; there are {known}."
            )
        return deployment


def _status(deployment: Deployment) -> ModelStatus:
    pool = deployment.pool
    match pool.state:
        case Down():
            word = "down"
        case Starting():
            word = "starting"
        case _:
            word = "ready"
    return ModelStatus(
        model=deployment.found.config.model,
        status=word,
        aliases=list(deployment.found.config.aliases),
        replicas=pool.replicas(),
        replayed=pool.replayed,
        repeated_tokens=pool.repeated_tokens,
        moved=pool.moved,
        moved_tokens=pool.moved_tokens,
    )
