"""Required tool calls over many random schemas, against a real server with the demo model."""

from __future__ import annotations

from pathlib import Path

import pytest
from constrained_calls import assert_calls_are_valid

from tests.e2e.e2e_server import Server

SCHEMAS = 500


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_required_calls_are_valid_whatever_the_schema(tmp_path: Path) -> None:
    server = Server(tmp_path).wait_ready()
    try:
        assert_calls_are_valid(server.url, SCHEMAS, depth=2)
    finally:
        server.stop()
