"""The header of a GGUF file: its metadata and where its tensors are. Reads no tensor data; torch-free.

The format is the one documented as GGUF version 2 and 3 in the ggml project. Own code because a start from cold pays
for it: the `gguf` library takes seconds to walk a vocabulary, this takes tens of milliseconds.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from stoker.models.source import ModelError

MAGIC = b"GGUF"
MAX_ENTRIES = 1 << 24  # metadata entries, tensors or array items: far above any model, far below what could hang us

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]


class TensorInfo(NamedTuple):
    """`type` is the ggml type number; `shape` is row-major (the last dimension is contiguous, the reverse of the
    file's own order); `offset` counts bytes from the start of the file."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


class GGUFHeader(NamedTuple):
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_metadata(path: Path) -> GGUFHeader:
    """Metadata values as Python ints, floats, bools, strings and lists; raises ModelError for a damaged file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise ModelError(
            f"{path} is not a readable GGUF file ({error}): it may be truncated, fetch it again"
        ) from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def header(self) -> GGUFHeader:
        if self.data[:4] != MAGIC:
            raise ValueError("it does not start with GGUF")
        self.at = 4
        version = self.scalar(_U32)
        if version not in (2, 3):
            raise ValueError(f"version {version} is not supported")
        tensor_count, entry_count = self.count(), self.count()
        metadata: dict[str, Any] = {}
        for _ in range(entry_count):
            key = self.string()
            metadata[key] = self.value(self.scalar(_U32))
        rows = [self.tensor() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        base = -(-self.at // alignment) * alignment
        return GGUFHeader(metadata, {row.name: row._replace(offset=base + row.offset) for row in rows})

    def tensor(self) -> TensorInfo:
        name = self.string()
        dimensions = self.scalar(_U32)
        if dimensions > 8:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self.scalar(_U64) for _ in range(dimensions))
        return TensorInfo(name, self.scalar(_U32), shape[::-1], self.scalar(_U64))

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item = self.scalar(_U32)
            length = self.count()
            if item == _STRING:
                return self.strings(length)
            if item == _ARRAY:
                raise ValueError("nested arrays are not supported")
            code = self.format(item)
            values = struct.unpack_from(f"<{length}{code.format[-1]}", self.data, self.at)
            self.at += length * code.size
            return list(values)
        return self.scalar(self.format(kind))

    def format(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return _SCALARS[kind]

    def count(self) -> int:
        number = self.scalar(_U64)
        if number > MAX_ENTRIES:
            raise ValueError(f"a count of {number}")
        return number

    def scalar(self, code: struct.Struct) -> Any:
        (value,) = code.unpack_from(self.data, self.at)
        self.at += code.size
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, length: int) -> list[str]:
        # a vocabulary is some hundred thousand strings: locals, no call per string
        data, at, size = self.data, self.at, len(self.data)
        unpack = _U64.unpack_from
        out: list[str] = []
        for _ in range(length):
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > size:
                raise ValueError("a string runs past the end of the file")
            out.append(data[start:at].decode("utf-8"))
        self.at = at
        return out
