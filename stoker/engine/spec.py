"""What an engine process is started with: one JSON object on its standard input. Imports no torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from stoker.config import EngineConfig
from stoker.engine.chain import ChainScheme
from stoker.engine.curve import Curve
from stoker.models.info import ModelInfo
from stoker.models.source import ModelFiles


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`endpoint` is the ZeroMQ address to bind, with the keys `curve` if it is no Unix socket; `chain_key` the hex key
    of the hash chain, the same for every engine of one installation; `log_format` and `log_level` as in the
    configuration. Of the `engines` on this host this is number `place`: what is not set in `config` (device, threads,
    memory) is chosen so that all find room."""

    files: ModelFiles
    info: ModelInfo
    config: EngineConfig
    endpoint: str
    curve: Curve | None = None
    chain_key: str
    place: int = 0
    engines: int = 1
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def scheme(self) -> ChainScheme:
        """How the chains of this engine are made."""
        return ChainScheme(bytes.fromhex(self.chain_key), self.info.fingerprint, self.config.block_size)
