"""The native library in this process: loaded once, or the reason why not."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from stoker.kernels.native import build

DTYPES = {torch.float32: 0, torch.bfloat16: 1}


@dataclass(frozen=True, slots=True)
class Library:
    """`isas` are those that the library has and this host can run, by their number in the library; `best` is the one to
    run. `team` says whose threads share the work."""

    functions: ctypes.CDLL
    isas: dict[str, int]
    best: str
    team: str


@cache
def load() -> Library | str:
    """The library, or why there is none: then all kernels run in plain torch."""
    path = build.library_path()
    if not path.exists():
        return "not built: run `python -m stoker.kernels.native.build`, which needs a C++ compiler"
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        return f"cannot be loaded: {error}"
    functions.stoker_isa_name.restype = ctypes.c_char_p
    functions.stoker_team.argtypes = (ctypes.c_void_p, ctypes.c_int)
    usable = [number for number in range(functions.stoker_isa_count()) if functions.stoker_isa_usable(number)]
    isas = {functions.stoker_isa_name(number).decode(): number for number in usable}
    parallel = _torch_team()
    functions.stoker_team(parallel, torch.get_num_threads())
    return Library(functions, isas, list(isas)[-1], "torch's threads" if parallel else "threads of its own")


def _torch_team() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that torch runs on, whatever file that is: a symbol is looked
    up in a library and in all that it depends on. None where torch has another kind of runtime."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            try:
                return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value
            except (OSError, AttributeError):
                return None
    return None
