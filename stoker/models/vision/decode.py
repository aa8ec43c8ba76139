"""A process that decodes images of clients: `python -m stoker.models.vision.decode`. It may be killed at any time;
nothing else depends on it.

Standard input: for each image a line of JSON, a `Task`, and behind it the file's bytes. Standard output: a line of JSON
when ready, and for each image one, a `Decoded`, with the pixels behind it unless it has an error.
"""

from __future__ import annotations

import resource
import signal
import sys

import msgspec
import numpy as np

from stoker.models.vision.pixels import ImageError, prepare
from stoker.models.vision.processor import ImageProcessor
from stoker.models.vision.task import Decoded, Task

MEMORY = 2 << 30  # address space
SECONDS = 30  # for an image, after which the process ends by itself, should nobody be left to end it


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    _answer(Decoded())
    source = sys.stdin.buffer
    while line := source.readline():
        task = msgspec.json.decode(line, type=Task)
        data = source.read(task.size)
        signal.alarm(SECONDS)
        _answer(*_decode(data, task.processor))
        signal.alarm(0)


def _decode(data: bytes, processor: ImageProcessor) -> tuple[Decoded, np.ndarray | None]:
    try:
        pixels = prepare(data, processor)[1]
    except ImageError as error:
        return Decoded(error=str(error)), None
    except MemoryError:
        return Decoded(error="it takes too much memory"), None
    return Decoded(pixels.shape[0], pixels.shape[1]), pixels


def _answer(decoded: Decoded, pixels: np.ndarray | None = None) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(decoded) + b"\n")
    if pixels is not None:
        sys.stdout.buffer.write(pixels.data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
