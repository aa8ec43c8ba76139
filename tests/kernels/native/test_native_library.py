"""Building and loading: what is loaded belongs to the sources, and whatever is missing leaves torch to do the work."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.kernels.native import build, library

WITH_A_POOL = """
import torch
from stoker.kernels.native import library
library._torch_team = lambda: None
torch.set_num_threads({threads})
from paged_case import Shape, make
from test_native_attention import attend
native = library.load()
assert native.team == "threads of its own"
case = make(Shape(heads=6, kv_heads=3, size=64, block=16), [(1, 900), (3, 600), (1, 1)])
for _ in range(50):
    torch.testing.assert_close(attend(native, native.best, case, 0.3), case.expected, atol=2e-5, rtol=2e-5)
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_without_gomp_a_pool_shares_the_work(native: library.Library, threads: int) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", WITH_A_POOL.format(threads=threads)]
    path = f"{here}:{here.parent}:{Path(library.__file__).parents[3]}"
    subprocess.run(command, check=True, timeout=120, env={"PYTHONPATH": path})


def test_the_best_is_the_last_that_the_host_has(native: library.Library) -> None:
    assert list(native.isas) == sorted(native.isas, key=lambda isa: native.isas[isa])
    assert next(iter(native.isas)) == "generic"
    assert native.best == list(native.isas)[-1]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Builds go to a folder of their own, from a copy of the sources."""
    sources = tmp_path / "src"
    sources.mkdir()
    for path in build.SOURCES.iterdir():
        (sources / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "HERE", tmp_path)
    library.load.cache_clear()
    yield tmp_path
    library.load.cache_clear()


def test_a_change_of_the_sources_asks_for_another_library(elsewhere: Path) -> None:
    before = build.library_path()
    with (elsewhere / "src" / "team.cpp").open("a") as source:
        source.write("\n// changed\n")
    assert build.library_path() != before


def test_no_library_no_compiler_and_no_error(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = library.load()
    assert isinstance(reason, str)
    assert "not built" in reason
    assert build.main() == 0
    assert "no C++ compiler" in capsys.readouterr().out
    assert not list(elsewhere.glob("*.so"))


def test_a_compiler_that_fails_is_quoted(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = elsewhere / "broken-c++"
    broken.write_text("#!/bin/sh\necho 'out of luck' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert build.main() == 1
    assert "out of luck" in capsys.readouterr().err
    assert not list(elsewhere.glob("*.so"))
    assert not list(elsewhere.glob(".build-*"))


def test_a_file_that_is_no_library_is_a_reason(elsewhere: Path) -> None:
    build.library_path().write_bytes(b"not a library")
    reason = library.load()
    assert isinstance(reason, str)
    assert "cannot be loaded" in reason


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")
def test_old_libraries_go_when_a_new_one_is_built(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ISAS", {"avx2": ("-mno-such-option",)})
    old = elsewhere / build.library_path().name.replace(build.library_path().stem[-12:], "0" * 12)
    other = elsewhere / "stoker-plan9-z80-000000000000.so"
    for path in (old, other):
        path.touch()
    made = build.build()
    assert made == build.library_path()
    assert made is not None
    assert made.exists()
    assert not old.exists()
    assert other.exists()
    functions = ctypes.CDLL(str(made))
    assert functions.stoker_isa_count() == 1, "a set that the compiler does not know is left out"
    assert build.build() == made
