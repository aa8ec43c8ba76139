"""What the rest of Stoker must know of a model without loading it: limits, end tokens, and its fingerprint.

Reads configuration and headers only. The text side (`text/`) and the weights have readers of their own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stoker.models.gguf_meta import read_metadata
from stoker.models.source import ModelError, ModelFiles, read_json, shard_names, tokenizer_files

_CONTEXT_KEYS = ("max_position_embeddings", "model_max_length", "max_sequence_length", "seq_length", "n_positions")
_GGUF_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLES, _MIN_SAMPLES, _SAMPLE_BYTES = 1024, 16, 4096


class ModelInfo(msgspec.Struct, frozen=True):
    """`context` is the longest prompt + output in tokens, `vocab_size` the number of rows of the output layer,
    `eos_ids` every token that ends an answer, `architecture` the family (`llama`).

    `fingerprint` is hex, the same on every machine for the same model and tokenizer: it covers configuration,
    tokenizer, every weight file's header and size, and evenly spread samples of the weights; no names of folders, no
    times. Two checkpoints of one shape differ in it unless they differ in unsampled bytes only.
    """

    name: str
    architecture: str
    context: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    fingerprint: str


def read_info(files: ModelFiles) -> ModelInfo:
    """Raises ModelError when the configuration lacks something or does not make sense."""
    return _from_gguf(files, Path(files.gguf)) if files.gguf is not None else _from_folder(files, Path(files.root))


def end_ids(files: ModelFiles) -> tuple[int, ...]:
    """The ids that end an answer: all that any of the model's files names, since they often disagree."""
    if files.gguf is not None:
        metadata = read_metadata(Path(files.gguf)).metadata
        return _ids(files.gguf, *(metadata.get(f"tokenizer.ggml.{key}") for key in _GGUF_END_KEYS))
    root = Path(files.root)
    config = read_json(root / "config.json")
    generation = root / "generation_config.json"
    named = [_text_config(config).get("eos_token_id"), config.get("eos_token_id")]
    if generation.is_file():
        named.append(read_json(generation).get("eos_token_id"))
    return _ids(files.root, *named)


def context_length(config: Mapping[str, Any]) -> object:
    """The longest prompt + output in tokens as a language model's configuration says it, None if it does not."""
    return next((config[key] for key in _CONTEXT_KEYS if key in config), None)


def _from_folder(files: ModelFiles, root: Path) -> ModelInfo:
    path = root / "config.json"
    config = _text_config(read_json(path))
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} has no model_type")
    digest = hashlib.sha256()
    for name in ("config.json", *(tokenizer_files({file.name for file in root.iterdir()}) or ())):
        _add(digest, (root / name).read_bytes())
    shards = [path for name in shard_names(root) if (path := root / name).is_file()]  # none where others serve it
    for shard in shards:
        _add(digest, shard.name.encode())
        _sample(digest, shard, _safetensors_start(shard), max(_MIN_SAMPLES, _SAMPLES // len(shards)))
    return ModelInfo(
        name=files.name,
        architecture=architecture,
        context=_positive(path, "a context length (max_position_embeddings)", context_length(config)),
        vocab_size=_positive(path, "vocab_size", config.get("vocab_size")),
        eos_ids=end_ids(files),
        fingerprint=digest.hexdigest(),
    )


def _from_gguf(files: ModelFiles, path: Path) -> ModelInfo:
    metadata, tensors = read_metadata(path)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} has no general.architecture in its metadata")
    if not tensors:
        raise ModelError(f"{path} holds no tensors: it is a vocabulary only")
    digest = hashlib.sha256()
    _sample(digest, path, min(tensor.offset for tensor in tensors.values()), _SAMPLES)
    tokens = metadata.get("tokenizer.ggml.tokens")
    return ModelInfo(
        name=files.name,
        architecture=architecture,
        context=_positive(path, f"{architecture}.context_length", metadata.get(f"{architecture}.context_length")),
        vocab_size=_positive(path, "tokenizer.ggml.tokens", len(tokens) if isinstance(tokens, list) else None),
        eos_ids=end_ids(files),
        fingerprint=digest.hexdigest(),
    )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration that also describes vision."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _positive(path: Path, what: str, value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{path} lacks {what}, or it is not a positive integer")
    return value


def _ids(where: str, *named: object) -> tuple[int, ...]:
    found: set[int] = set()
    for value in named:
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(item, int) or item < 0:
                raise ModelError(f"the model in {where} names {item!r} as an end token: it must be a token id")
            found.add(item)
    return tuple(sorted(found))


def _safetensors_start(path: Path) -> int:
    """Where tensor data starts: after an 8-byte length and that many bytes of JSON header."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    if start > path.stat().st_size:
        raise ModelError(f"{path} is not a whole safetensors file: fetch it again")
    return start


def _sample(digest: Any, path: Path, start: int, count: int) -> None:
    """Add a weight file: its size, all bytes before `start`, and `count` pieces spread evenly from there to its end."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        _add(digest, size.to_bytes(8, "little"))
        _add(digest, file.read(start))
        last = max(size - _SAMPLE_BYTES, start)
        for place in sorted({start + (last - start) * step // max(count - 1, 1) for step in range(count)}):
            _add(digest, os.pread(file.fileno(), _SAMPLE_BYTES, place))


def _add(digest: Any, data: bytes) -> None:
    """Length first, so that no two sequences of parts hash alike."""
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)
