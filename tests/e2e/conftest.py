"""Servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_server import KEYS, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Open to all on loopback."""
    running = Server(tmp_path_factory.mktemp("open")).wait_ready()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two tenants with a key each."""
    pairs = ",".join(f"{name}={key}" for name, key in KEYS.items())
    running = Server(tmp_path_factory.mktemp("keyed"), env={"STOKER_API_KEYS": pairs}).wait_ready()
    yield running
    running.stop()
