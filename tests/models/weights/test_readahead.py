"""Reading ahead: in bounds, in order, at once where needed; and what a person is told meanwhile."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from stoker.models.weights import readahead
from stoker.models.weights.meter import LoadMeter
from stoker.models.weights.readahead import ReadAhead

CHUNK = 10


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The pieces that were read, in order of their beginning."""
    seen: list[tuple[str, int]] = []
    real = readahead._read

    def spy(buffers: threading.local, file: Path, start: int, size: int) -> None:
        seen.append((file.name, start))
        real(buffers, file, start, size)

    monkeypatch.setattr(readahead, "_read", spy)
    return seen


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(paths, (35, 20), strict=True):
        path.write_bytes(bytes(size))
    return paths


def _idle() -> None:
    return None


def test_everything_is_read_once_in_order(files: list[Path], reads: list[tuple[str, int]]) -> None:
    ahead = ReadAhead(files, workers=1, chunk=CHUNK)
    for file in files:
        ahead.need(file, 0, file.stat().st_size, _idle)
    ahead.need(files[0], 5, 25, _idle)
    assert reads == [("a", 0), ("a", 10), ("a", 20), ("a", 30), ("b", 0), ("b", 10)]


def test_reading_stays_within_its_lead_but_what_is_needed_is_read(
    files: list[Path], reads: list[tuple[str, int]]
) -> None:
    ahead = ReadAhead(files, workers=2, chunk=CHUNK, lead=2 * CHUNK)
    ahead.need(files[1], 12, 15, _idle)
    ahead.need(files[1], 15, 20, _idle)
    assert set(reads) == {("a", 0), ("a", 10), ("b", 10)}


def test_it_says_that_it_waits(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    go, waited = threading.Event(), []
    monkeypatch.setattr(readahead, "_read", lambda *args: go.wait(10))
    monkeypatch.setattr(readahead, "_PATIENCE", 0.001)

    def idle() -> None:
        waited.append(1)
        if len(waited) == 3:
            go.set()

    ReadAhead(files[:1], chunk=CHUNK).need(files[0], 0, 5, idle)
    assert len(waited) >= 3


def test_a_file_that_cannot_be_read_is_an_error_where_it_is_needed(files: list[Path]) -> None:
    ahead = ReadAhead(files, chunk=CHUNK, lead=0)
    files[0].unlink()
    with pytest.raises(FileNotFoundError):
        ahead.need(files[0], 0, 5, _idle)


def test_threads_end_with_their_reader(files: list[Path]) -> None:
    ahead = ReadAhead(files, chunk=CHUNK)
    ahead.need(files[1], 0, 20, _idle)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("weights")]
    assert threads
    del ahead
    gc.collect()
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_short_load_has_one_stage() -> None:
    told: list[tuple[str, float]] = []
    meter = LoadMeter(6, lambda stage, fraction: told.append((stage, fraction)), _Clock())
    meter.skip(2)
    meter.add(1)
    meter.add(3)
    meter.finish()
    assert told == [("loading weights", 0.25), ("loading weights", 1.0), ("loading weights", 1.0)]


def test_a_long_load_tells_bytes_and_rate_now_and_then() -> None:
    told: list[str] = []
    clock = _Clock()
    meter = LoadMeter(8 * 10**9, lambda stage, fraction: told.append(stage), clock)
    for _ in range(8):
        clock.now += 2
        meter.add(10**9)
    meter.finish()
    stages = list(dict.fromkeys(told))
    assert stages == [
        "loading weights",
        "loading weights, 3.0 of 8.0 GB, 0.50 GB/s",
        "loading weights, 6.0 of 8.0 GB, 0.50 GB/s",
        "loaded 8.0 GB of weights in 16 s, 0.50 GB/s",
    ]


def test_nothing_to_load_is_done() -> None:
    told: list[float] = []
    LoadMeter(0, lambda stage, fraction: told.append(fraction), _Clock()).tell()
    assert told == [1.0]
