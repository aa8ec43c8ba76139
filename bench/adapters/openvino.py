"""OpenVINO GenAI. Its model form is exported once, in its own environment, beside the other converted models."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.adapters.base import Missing, Worker
from bench.client import BenchError
from bench.convert import hf_folder

EXPORT_SECONDS = 900


def peer(peers: Path) -> Worker | Missing:
    home = peers / "openvino"
    if not (home / ".done").is_file():
        return Missing("openvino", "OpenVINO GenAI is not installed here: make bench-peer-openvino")
    return Worker(
        name="openvino",
        python=home / "bin" / "python",
        module="bench.workers.openvino_genai",
        model=_exported(peers),
        env={"HF_HUB_OFFLINE": "1"},
    )


def _exported(peers: Path) -> Path:
    folder = peers / "models" / "demo-openvino"
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = [str(peers / "openvino" / "bin" / "optimum-cli"), "export", "openvino", "--task"]
        command += ["text-generation-with-past", "--weight-format", "fp16", "--model", str(hf_folder(peers)), str(part)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_SECONDS, check=False)
        if done.returncode != 0:
            raise BenchError(f"the export for OpenVINO failed:\n{done.stderr[-2000:]}")
        part.rename(folder)
    return folder
