"""`stoker serve`: from flags, file and environment to one configuration; serving.py does the rest."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli.output import fail
from stoker.config import ConfigError, load

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}

EXAMPLES = """
[bold]Examples[/]

  stoker serve                              the embedded demo model on 127.0.0.1:8000
  stoker serve --model ./Kimi-K2 --port 80  a folder with config.json and safetensors
  stoker serve --replicas 4                 four engines; sessions stay where their cache is
  stoker serve --model ORG/NAME             from the Hugging Face hub, kept in the data folder
  stoker serve --model ORG/NAME --revision 3f2a91c --offline    that commit, fetched before; no hub is asked
  stoker serve stoker.toml --log-format json several models, tenants, all settings: docs/configuration.md
"""


def serve(
    config_file: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; flags win.")] = None,
    model: Annotated[str | None, typer.Option(help="demo, a folder, a .gguf file, or ORG/NAME.")] = None,
    name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Engines of the model, each a process of its own.", min=1)
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Commit or tag of a hub model.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (other than loopback needs keys).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = None,
    offline: Annotated[
        bool | None, typer.Option("--offline", help="Ask no hub: models were fetched before.", show_default=False)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where Stoker keeps its files.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the engine.", min=1, max=1024)] = None,
    context: Annotated[int | None, typer.Option(help="Longest prompt + output in tokens.", min=1)] = None,
    kv_memory: Annotated[str | None, typer.Option(help="KV cache size, as in 2GiB or 500M.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM private key.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve a model to OpenAI clients and coding agents."""
    try:
        flags = {
            "model": model,
            "name": name,
            "revision": revision,
            "replicas": replicas,
            "offline": offline,
            "data_dir": data_dir and str(data_dir),
            "log_format": log_format,
            "log_level": log_level,
            "engine.device": device,
            "engine.dtype": dtype,
            "engine.threads": threads,
            "engine.context": context,
            "engine.kv_memory": kv_memory and parse_bytes(kv_memory),
            "gateway.host": host,
            "gateway.port": port,
            "gateway.tls_cert": tls_cert and str(tls_cert),
            "gateway.tls_key": tls_key and str(tls_key),
            "tenants": keys_from_environment(),
        }
        config = load(config_file, flags)
    except ConfigError as error:
        raise fail(str(error), code=2) from error
    from stoker.cli.serving import run

    raise typer.Exit(run(config, lambda: load(config_file, flags)))


def parse_bytes(text: str) -> int:
    """`2GiB`, `500M`, `1048576` -> bytes. Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in UNITS:
        raise ConfigError(f"{text!r} is no size; write for example 2GiB, 500M or 1048576")
    return int(float(match[1]) * UNITS[match[2]])


def keys_from_environment() -> list[dict[str, Any]] | None:
    """`STOKER_API_KEYS="alice=sk-...,bob=sk-..."` as tenants, hashed at once; None if it is not set."""
    text = os.environ.get("STOKER_API_KEYS")
    if not text:
        return None
    tenants: list[dict[str, Any]] = []
    for number, pair in enumerate(text.split(","), start=1):
        name, _, key = pair.strip().partition("=")
        if not name or not key:
            raise ConfigError(f"STOKER_API_KEYS: entry {number} is not NAME=KEY")
        tenants.append({"name": name, "key_sha256": sha256(key.encode()).hexdigest()})
    return tenants
