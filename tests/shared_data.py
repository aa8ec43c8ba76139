"""Where the conformance goldens and other shared data lie, beside the repository; tests that read them skip without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data at {SHARED}")


def read_lines(name: str) -> list[dict[str, Any]]:
    """The lines of `conformance/NAME`, a file of JSON lines; none where the shared data is absent."""
    path = SHARED / "conformance" / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
