"""transformers, the reference: it comes with the development tools and runs in a process of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from bench.adapters.base import Missing, Worker
from bench.convert import hf_folder


def peer(peers: Path) -> Worker | Missing:
    if importlib.util.find_spec("transformers") is None:
        return Missing("transformers", "transformers is not installed here: make setup")
    return Worker(
        name="transformers",
        python=Path(sys.executable),
        module="bench.workers.transformers_generate",
        model=hf_folder(peers),
        env={"HF_HUB_OFFLINE": "1"},
    )
