"""The headers of safetensors files: which tensors there are, of which type and shape, and where. Torch-free.

The format is an 8-byte length and that many bytes of JSON, after which the tensors' bytes follow.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from stoker.models.source import ModelError, shard_names

MAX_HEADER = 100_000_000  # bytes; the format's own limit
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip


_READABLE = {"F64", "F32", "F16", "BF16"}


class Stored(NamedTuple):
    """`dtype` as the format spells it; the bytes are `[begin, end)` of `file`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_folder(root: Path) -> dict[str, Stored]:
    """All tensors of the model in `root`. Raises ModelError for a damaged header or a tensor that is there twice."""
    found: dict[str, Stored] = {}
    for name in shard_names(root):
        tensors = read_header(root / name)
        twice = found.keys() & tensors.keys()
        if twice:
            tensor = min(twice)
            raise ModelError(f"{root} holds the tensor {tensor} twice, in {found[tensor].file.name} and {name}")
        found.update(tensors)
    return found


def read_header(path: Path) -> dict[str, Stored]:
    """Raises ModelError unless `path` starts like a safetensors file. Whether its data is whole is not looked at."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            text = file.read(size) if 1 < size <= MAX_HEADER else b""
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    if len(text) < size:
        raise ModelError(f"cannot read {path}: it has no safetensors header, or not all of it: fetch it again")
    start = 8 + size
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        read = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}
    except msgspec.MsgspecError as error:
        raise ModelError(f"cannot read {path}: it has no safetensors header: fetch it again") from error
    return {
        name: Stored(path, entry.dtype, entry.shape, *(start + offset for offset in entry.data_offsets))
        for name, entry in read.items()
    }


def check_readable(where: str, name: str, kind: str) -> None:
    """Raises ModelError unless numbers of the type `kind` are a tensor's values."""
    if kind not in _READABLE:
        raise ModelError(
            f"{where}: the tensor {name} is stored as {kind}, which needs a quantization_config in config.json "
            "that says what it means"
        )
