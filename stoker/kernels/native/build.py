"""Compiles the native kernels into one shared library beside this file. Standard library only: it runs at install.

One translation unit for each instruction set, and what the host has is found out when the library is loaded, so that
a library built here may run on another machine of the same kind. Its name carries a digest of all that it was built
from: one that does not belong to these sources is never loaded.

    python -m stoker.kernels.native.build
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "src"
COMPILERS = ("c++", "g++", "clang++")
COMMON = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-pthread")
# GCC warns of its own headers: intrinsics that leave a register undefined on purpose.
WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
SHARED = ("attend", "dispatch", "rows", "team")
ISAS = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"),
}
SECONDS = 300.0


class BuildError(RuntimeError):
    """The compiler refuses; the message is what it says."""


def library_path() -> Path:
    """Where the library of these sources is, or would be."""
    digest = hashlib.sha256()
    for path in (Path(__file__), *sorted(SOURCES.iterdir())):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return HERE / f"stoker-{sys.platform}-{platform.machine()}-{digest.hexdigest()[:12]}.so"


def compiler() -> str | None:
    """What compiles C++ here: $CXX, or the first of the usual names."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, COMPILERS)), None)


def build() -> Path | None:
    """Compile unless that is done already. None if there is no compiler. Raises BuildError if it fails, OSError if the
    result cannot be written."""
    target = library_path()
    if target.exists():
        return target
    program = compiler()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".build-") as folder:
        made = _compile(program, Path(folder))
        for old in HERE.glob(f"stoker-{sys.platform}-{platform.machine()}-*.so"):
            old.unlink(missing_ok=True)
        made.replace(target)  # at once: another process may be building the same
    return target


def _compile(program: str, folder: Path) -> Path:
    machine = platform.machine().lower()
    extra = [isa for isa, flags in ISAS.items() if machine in ("x86_64", "amd64") and _accepts(program, flags, folder)]
    flags = {"generic": (), **{isa: ISAS[isa] for isa in extra}}
    known = [f"-DSTOKER_WITH_{isa}" for isa in extra]
    units = {name: (f"{name}.cpp", known) for name in SHARED}
    units |= {f"isa_{isa}": ("isa.cpp", [*own, f"-DSTOKER_ISA={isa}"]) for isa, own in flags.items()}

    def one(name: str) -> None:
        source, options = units[name]
        _run(program, *COMMON, *WARNINGS, *options, "-c", str(SOURCES / source), "-o", str(folder / f"{name}.o"))

    with ThreadPoolExecutor(min(len(units), os.cpu_count() or 1)) as pool:
        list(pool.map(one, units))
    made = folder / "made.so"
    _run(program, "-shared", "-pthread", *(str(folder / f"{name}.o") for name in units), "-o", str(made))
    return made


def _accepts(program: str, flags: tuple[str, ...], folder: Path) -> bool:
    empty = folder / "empty.cpp"
    empty.touch()
    try:
        _run(program, *flags, "-c", str(empty), "-o", os.devnull)
    except BuildError:
        return False
    return True


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr.strip()}")


def main() -> int:
    """Build and say what came of it. A missing compiler is no failure: torch does the work then, more slowly."""
    try:
        made = build()
    except (BuildError, OSError) as error:
        print(f"the native kernels could not be built: {error}", file=sys.stderr)
        return 1
    if made is None:
        print(
            "no C++ compiler (set CXX, or install g++ or clang++): plain torch kernels will be used, which are slower"
        )
    else:
        print(f"native kernels: {made.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
