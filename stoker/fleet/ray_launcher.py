"""Engines on the nodes of a Ray cluster: each in a placement group of its own, anew on another node when one is lost.

Owns what Ray must know: the bundle that an engine needs, and the actor that holds it. The actor starts the very process
that a local engine is, and the gateway talks to it directly, over TCP with CURVE keys made for that life; no request
goes through Ray. When the gateway goes, Ray ends its actors, and each engine ends with its actor.

A model's files must be where `files` says on every node: a shared folder, or the hub's cache. One rank so far, so a
replica is one bundle; more ranks are more bundles of the same group.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.config import ConfigError
from stoker.engine.client import Pixels
from stoker.engine.curve import curve_pair
from stoker.engine.spec import EngineSpec
from stoker.fleet.backend import State
from stoker.fleet.seat import ENGINE_COMMAND, Address, end_of, kill_group, start_engine
from stoker.fleet.supervisor import LocalReplica
from stoker.types.wire import KVNews

KILL_SECONDS = 2.0  # for a node to end an engine; one that does not answer is lost anyway

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


def connect(address: str) -> None:
    """Join the cluster at `address` ("auto": the one this host belongs to). Blocks. Raises ConfigError."""
    try:
        import ray
    except ImportError:
        raise ConfigError('launcher = "ray" needs the package ray: pip install "stoker[ray]"') from None
    try:
        ray.init(address=address, namespace="stoker", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no Ray cluster answers at {address!r}: {error}") from error


def disconnect() -> None:
    """Leave it; what it runs for this process ends."""
    import ray

    ray.shutdown()


class RayLauncher:
    """A `Launcher`. Each replica gets `cpus` and `gpus` of one node; `pixels` gives those of images that
    engines ask for."""

    limit: int | None = None

    def __init__(self, spec: EngineSpec, *, cpus: int, gpus: int, zone: str = "", pixels: Pixels | None = None) -> None:
        self._spec = spec
        self._bundle = {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}
        self._zone = zone
        self._pixels = pixels

    def make(
        self,
        name: str,
        *,
        proven: Callable[[], bool],
        on_state: Callable[[State], None],
        on_kv: Callable[[KVNews], None],
    ) -> LocalReplica:
        return LocalReplica(
            lambda endpoint: msgspec.structs.replace(self._spec, endpoint=endpoint),
            name=name,
            zone=self._zone,
            slots=self._spec.config.max_running,
            seat=lambda: RaySeat(name, self._bundle),
            loading=asyncio.Semaphore(1),  # nodes do not get in each other's way
            proven=proven,
            on_state=on_state,
            on_kv=on_kv,
            pixels=self._pixels,
        )

    def forget(self, name: str) -> None:
        """Nothing: each life's placement group is given back by its seat."""


class RaySeat:
    """See `seat.Seat`. `bundle` is what the engine needs of one node, in Ray's own words."""

    pid = None  # on another host

    def __init__(self, name: str, bundle: dict[str, int]) -> None:
        self._name = name
        self._bundle = bundle
        self._group: PlacementGroup | None = None
        self._actor: Any = None

    async def open(self) -> Address:
        import ray
        from ray.exceptions import RayError
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        try:
            self._group = placement_group([dict(self._bundle)], strategy="STRICT_PACK", name=f"stoker {self._name}")
            await self._group.ready()
            host: Any = ray.remote(EngineHost)  # pyright: ignore[reportCallIssue, reportArgumentType]
            self._actor = host.options(
                num_cpus=self._bundle["CPU"],
                num_gpus=self._bundle.get("GPU", 0),
                max_restarts=0,  # another life is the supervisor's to begin
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=0),
            ).remote()
            endpoint: str = await self._actor.endpoint.remote()
        except RayError as error:
            raise OSError(_said(error)) from error
        engine, client = curve_pair()
        return Address(endpoint, engine, client)

    async def run(self, spec: EngineSpec) -> str:
        from ray.exceptions import RayError

        try:
            return await self._actor.run.remote(msgspec.json.encode(spec))
        except RayError as error:
            return f"the engine's node or actor was lost: {_said(error)}"

    def kill(self) -> None:
        if self._actor is not None:
            self._actor.kill.remote()
        else:
            self._give_up()

    async def close(self) -> None:
        import ray
        from ray.exceptions import RayError

        if self._actor is not None:
            # an engine that hangs does not see that its parent has gone: it must be killed while there is one
            with suppress(RayError, TimeoutError):
                await asyncio.wait_for(self._actor.kill.remote(), KILL_SECONDS)
            ray.kill(self._actor)
        self._give_up()

    def _give_up(self) -> None:
        from ray.util.placement_group import remove_placement_group

        group, self._group = self._group, None
        if group is not None:
            remove_placement_group(group)


class EngineHost:
    """The actor: runs in the node's own process, parent of the engine."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def endpoint(self) -> str:
        """An address of this node with a port that is free now. If another takes it first, the engine says so and ends,
        and its next life asks again."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"

    async def run(self, encoded: bytes) -> str:
        """The life of the engine; returns why it ended."""
        spec = msgspec.json.decode(encoded, type=EngineSpec)
        self._process = await start_engine(ENGINE_COMMAND)
        try:
            return await end_of(self._process, spec)
        finally:
            await self.kill()

    async def kill(self) -> None:
        if self._process and self._process.returncode is None:
            kill_group(self._process)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
