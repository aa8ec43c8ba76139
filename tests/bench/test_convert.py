"""The demo model in the peers' forms: the same weights, in the order each reader expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.convert import bf16_gguf, demo_gguf, hf_folder, write_folder, write_gguf
from stoker.models.source import ModelFiles
from stoker.models.text.model import TextModel
from stoker.models.weights.gguf import GGUFSource

TEXT = "The capital of France is"


def test_transformers_finds_the_model_in_the_folder(tmp_path: Path, demo_files: ModelFiles) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_folder(tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(TEXT)["input_ids"]
    assert ids == TextModel.load(demo_files).encode(TEXT)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.inference_mode():
        best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
    assert tokenizer.decode([best]) == " Paris"


def test_the_gguf_holds_the_same_weights_and_metadata(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf")
    before, after = GGUFSource(demo_gguf()), GGUFSource(tmp_path / "model.gguf")
    changed = {"general.file_type": 32}
    assert after.metadata == {
        key: value for key, value in {**before.metadata, **changed}.items() if key != "general.quantization_version"
    }
    assert after.names == before.names
    for name in sorted(before.names)[::20]:
        assert torch.equal(after.dense(name, torch.bfloat16), before.dense(name, torch.bfloat16)), name


@pytest.mark.parametrize(("make", "writer"), [(hf_folder, "write_folder"), (bf16_gguf, "write_gguf")])
def test_a_form_is_written_once_and_an_interrupted_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, writer: str
) -> None:
    written: list[Path] = []

    def interrupted(target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"bench.convert.{writer}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path)
    monkeypatch.setattr(f"bench.convert.{writer}", written.append)
    assert make(tmp_path) == make(tmp_path)
    assert len(written) == 1
