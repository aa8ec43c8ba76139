"""One frozen configuration tree: every default lives here once. TOML file, then command-line flags over it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

MIB = 1 << 20

C = TypeVar("C")

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 48)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,128}$")]  # travels in URLs and headers
Share = Annotated[float, msgspec.Meta(ge=0, le=0.25)]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine process. None means: chosen from the host and the model when the engine starts.

    step_tokens     token budget of one step (prefill chunks and decode steps together)
    prefill_tokens  the budget while nobody decodes: larger chunks are quicker, and no stream stalls on them
    block_size      tokens of a page of the KV cache
    kv_memory       bytes for the KV pool and for states
    context         longest prompt + output in tokens; at most the model's own
    lane_reserve    share of the step budget kept for (standard, batch) while a higher lane could take it all

    Of models that keep states beside KV (Kimi-Linear):
    state_slots      how many states, of running sequences and as snapshots that later prompts go on from
    snapshot_tokens  leave a snapshot each so many tokens of a prompt, not only where it ends or is known to branch
    """

    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: Count | None = None
    block_size: Literal[4, 8, 16, 32, 64] = 16
    kv_memory: Count | None = None
    context: Count | None = None
    step_tokens: Count | None = None
    prefill_tokens: Count | None = None
    max_running: Count = 64
    max_waiting: Count = 1024
    lane_reserve: tuple[Share, Share] = (0.1, 0.02)
    state_slots: Count | None = None
    snapshot_tokens: Count | None = None


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server of another make that runs a model: vLLM. We send it token ids; it needs no template and no parser.

    url          without /v1
    model        what it calls the model
    key_env      name of the environment variable with its API key
    concurrency  requests that it gets at the same time; more are sent to others or refused
    kv_tokens    how many tokens its prefix cache holds, for routing
    """

    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[!-~]+[^/]$")]
    model: str
    key_env: str | None = None
    zone: Annotated[str, msgspec.Meta(max_length=128)] = ""
    concurrency: Count = 64
    kv_tokens: Count = 1_000_000


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model that is served.

    model    `demo`, a folder, a .gguf file, or ORG/NAME on the hub
    name     what clients call it; None is the model's own name, which will do where there is only one
    aliases  further names that lead to it
    replicas engines of it on this host, each a process of its own; threads and memory that are not set are shared out
    zone     where they are: requests that are pinned to another zone never reach them
    servers  servers of another make that run it instead of engines of ours; of `model` only configuration, tokenizer
             and template are read then
    """

    model: str = "demo"
    name: Name | None = None
    aliases: tuple[Name, ...] = ()
    revision: str | None = None
    replicas: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    zone: Annotated[str, msgspec.Meta(max_length=128)] = ""
    engine: EngineConfig = EngineConfig()
    servers: tuple[ServerConfig, ...] = ()


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the HTTP side. Sizes in bytes, times in seconds.

    body_timeout    longest pause within a body; also how long a client may leave a full send buffer untouched
    heartbeat       silence in a stream after which a comment is sent
    engine_silence  how old the engine's last sign of life may be while it still counts as alive
    metrics         who may read /metrics, which asks for no key: nobody, clients on this machine, or all
    memory          for conversations that clients go on with by `previous_response_id`, shared equally by all tenants;
                    0 keeps none. They are in memory only and given out for `memory_seconds` at most
    """

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8000
    tls_cert: str | None = None
    tls_key: str | None = None
    max_body: Count = 32 * MIB
    max_connections: Count = 2048
    max_in_flight: Count = 1024
    header_timeout: Seconds = 10.0
    body_timeout: Seconds = 30.0
    keep_alive: Seconds = 75.0
    heartbeat: Seconds = 10.0
    engine_silence: Seconds = 30.0
    shutdown_grace: Seconds = 0.8
    metrics: Literal["off", "local", "all"] = "local"
    memory: Annotated[int, msgspec.Meta(ge=0, le=1 << 48)] = 64 * MIB
    memory_seconds: Seconds = 3600.0


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all replicas of all models.

    recover  seconds that a request whose engine died waits for one that can go on, where no other is there at once
    drain    seconds that a replica which is to stop may finish what it has, before the rest goes on elsewhere
    loading  engines that load at the same time: more of them get in each other's way at disk and memory
    launcher `local` starts engines on this host, `ray` on the nodes of the Ray cluster at `ray_address`; there an
             engine takes `engine.threads` cores (1 if unset) and, where `engine.device` is cuda, one GPU
    """

    recover: Seconds = 30.0
    drain: Seconds = 60.0
    loading: Count = 2
    launcher: Literal["local", "ray"] = "local"
    ray_address: str = "auto"


class TracesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traces of requests, off without an endpoint.

    endpoint  where an OpenTelemetry collector takes spans over HTTP: http://127.0.0.1:4318/v1/traces
    sample    share of requests that are recorded, where the client's `traceparent` does not decide
    """

    endpoint: Annotated[str, msgspec.Meta(pattern=r"^https?://")] | None = None
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0


class ImagesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where images of requests may come from. Sizes in bytes, times in seconds.

    fetch      get those that are given by an https URL; false: only what comes with the request
    hosts      the only hosts that they are fetched from (`*.example.org` for all below one); empty: every public one
    max_bytes  of a file, however it comes
    timeout    for all of a fetch
    """

    fetch: bool = True
    hosts: tuple[str, ...] = ()
    max_bytes: Count = 20_000_000
    timeout: Seconds = 10.0


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who a key belongs to.

    key_sha256  hex digest of the key; the key itself is stored nowhere
    retain      false: nothing that this tenant sends or gets is kept after its request, whatever the request says; the
                engine's prefix cache, which holds no text, works all the same
    zone        its requests are served there or not at all
    admin       its key may operate the server over HTTP (`--admin-url`)
    """

    name: str
    key_sha256: str
    retain: bool = True
    zone: Name | None = None
    admin: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole tree, as `load` gives it: a file's shorthands are resolved, names are told apart. With `offline` no hub
    is asked: a model of ORG/NAME must have been fetched before."""

    models: tuple[ModelConfig, ...] = (ModelConfig(),)
    data_dir: str | None = None
    offline: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tenants: tuple[Tenant, ...] = ()
    gateway: GatewayConfig = GatewayConfig()
    images: ImagesConfig = ImagesConfig()
    fleet: FleetConfig = FleetConfig()
    traces: TracesConfig = TracesConfig()

    @property
    def data_path(self) -> Path:
        """Where Stoker keeps what outlives it: the XDG data folder unless told otherwise."""
        if self.data_dir is not None:
            return Path(self.data_dir).expanduser()
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(base).expanduser() / "stoker"


class ConfigError(ValueError):
    """The configuration is wrong; the message says which file or flag and where in it."""


class _File(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file may say: the tree; of a single model also at the top, without [[models]]; and under [engine] what
    holds for the engines of every model that does not say otherwise."""

    models: tuple[ModelConfig, ...] = ()
    model: str | None = None
    name: Name | None = None
    revision: str | None = None
    replicas: int | None = None
    engine: EngineConfig = EngineConfig()


SHORTHAND = ("model", "name", "revision", "replicas")  # of `_File`: what the only model has


def load(path: Path | None, overrides: dict[str, Any]) -> Config:
    """Read `path` (TOML) if given and lay `overrides` over it.

    `overrides` maps dotted names (`gateway.port`, `engine.threads`, `model`) to values; None values are left out, so an
    absent flag keeps what the file or the default says. Raises ConfigError.
    """
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
    where = str(path or "flags")
    _convert(tree, _File, where)  # before anything is moved, so that errors name the place where it was written
    flags = {dotted: value for dotted, value in overrides.items() if value is not None}
    config = _convert(_resolve(tree, flags, where), Config, where)
    _tell_apart(config.models, where)
    return config


def _convert(tree: dict[str, Any], kind: type[C], where: str) -> C:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def _resolve(tree: dict[str, Any], flags: dict[str, Any], where: str) -> dict[str, Any]:
    """The tree with every model under `models`, each with all its engine's settings, and the flags over it all."""
    rest = {key: value for key, value in tree.items() if key not in (*SHORTHAND, "engine", "models")}
    single = {key: tree[key] for key in SHORTHAND if key in tree}
    models: list[dict[str, Any]] = [dict(model) for model in tree.get("models", [single])]
    if "models" in tree and single:
        raise ConfigError(f"{where}: {next(iter(single))!r} is beside [[models]]: write it into one of the entries")
    if not models:
        raise ConfigError(f"{where}: 'models' is empty")
    common, forced = dict(tree.get("engine", {})), dict[str, Any]()
    for dotted, value in flags.items():
        group, _, leaf = dotted.rpartition(".")
        if group == "engine":
            forced[leaf] = value
        elif group:
            rest[group] = {**rest.get(group, {}), leaf: value}
        elif leaf not in SHORTHAND:
            rest[leaf] = value
        elif len(models) == 1:
            models[0][leaf] = value
        else:
            raise ConfigError(f"--{leaf} is for a single model, but {where} has {len(models)}")
    for model in models:
        model["engine"] = {**common, **model.get("engine", {}), **forced}
    return {**rest, "models": models}


def _tell_apart(models: tuple[ModelConfig, ...], where: str) -> None:
    """Raise ConfigError if a name does not say which model is meant."""
    taken: dict[str, int] = {}
    for place, model in enumerate(models):
        if model.name is None and len(models) > 1:
            raise ConfigError(f"{where}: models[{place}] needs a name, because there are several models")
        for name in (*(() if model.name is None else (model.name,)), *model.aliases):
            if name in taken:
                raise ConfigError(f"{where}: the name {name!r} of models[{place}] is one of models[{taken[name]}] too")
            taken[name] = place
