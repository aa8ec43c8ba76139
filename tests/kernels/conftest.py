"""The native library of these sources, built if it is not there yet."""

from __future__ import annotations

import pytest

from stoker.kernels.native import build, library


@pytest.fixture(scope="session")
def native() -> library.Library:
    if build.compiler() is None:
        pytest.skip("no C++ compiler")
    if not build.library_path().exists():
        build.build()
        library.load.cache_clear()
    loaded = library.load()
    assert isinstance(loaded, library.Library), loaded
    return loaded
