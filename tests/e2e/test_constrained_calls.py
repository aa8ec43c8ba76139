"""The demo model, far too small to call tools by itself, makes valid calls because nothing else can be sampled."""

from __future__ import annotations

import pytest
from constrained_calls import assert_calls_are_valid
from e2e_server import Server

SCHEMAS = 100


@pytest.mark.timeout(900)
def test_required_calls_are_valid_whatever_the_schema(server: Server) -> None:
    assert_calls_are_valid(server.url, SCHEMAS, depth=1)
