"""Fetching a model from the hub into the data folder, once; later starts need no network.

Only what is data is fetched: safetensors, JSON, Jinja templates and tokenizer files from the top of the repository.
Never Python, pickles or anything else that could run. A lost connection goes on where it stopped; a download that was
killed keeps its whole files. Every file's SHA-256 is told, and must be the hub's where that states one. Knows nothing
of what is in the files.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from stoker.models.source import INDEX, ModelError, missing, shard_names, tokenizer_files

_WANTED = re.compile(r"[\w.-]+\.(safetensors|json|jinja|tiktoken)|tokenizer\.model|tiktoken\.model")
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*")
_PARTS = ".cache/huggingface/download"  # where the hub's client keeps files it has not finished
_MARKER = "stoker-download.json"
_LISTING_SECONDS = 10.0
_POLL_SECONDS = 0.25
_USE_LOCAL = "Without a hub, copy the model's folder here and give its path, or use the model demo"
_HASHERS = 4
_PIECE_BYTES = 8 << 20

log = logging.getLogger(__name__)


class _File(msgspec.Struct, frozen=True):
    """Size in bytes and SHA-256 in hex."""

    size: int
    sha256: str


class _Complete(msgspec.Struct, frozen=True):
    """Written last: the commit that all files are from, and what they were."""

    commit: str
    files: dict[str, _File]


class _Listing(msgspec.Struct, frozen=True):
    """What the hub has at a revision: the commit, and of the files that may be fetched their sizes in bytes, and their
    SHA-256 where it states that."""

    commit: str
    sizes: dict[str, int]
    digests: dict[str, str]


def fetch(
    repository: str,
    *,
    revision: str | None,
    data_dir: Path,
    offline: bool,
    progress: Callable[[str, float], None],
) -> Path:
    """The folder with ORG/NAME at `revision` (a branch, tag or commit; default: main), downloaded if it is not whole.

    A revision that was once fetched is kept as it is, also where it is a branch that moved on since. `offline`, and
    HF_HUB_OFFLINE in the environment, never ask a hub. Raises ModelError.
    """
    revision = revision or "main"
    if not _REVISION.fullmatch(revision):
        raise ModelError(f"{revision!r} is not a revision: give a branch, a tag or a commit")
    folder = data_dir / "models" / repository.replace("/", "--") / revision.replace("/", "--")
    if not _is_complete(folder):
        if offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise ModelError(f"{repository} at {revision} is not here, and no hub is asked offline. {_USE_LOCAL}")
        with _alone(folder):
            _download(repository, revision, folder, progress)
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        marker = msgspec.json.decode((folder / _MARKER).read_bytes(), type=_Complete)
        return all((folder / name).stat().st_size == file.size for name, file in marker.files.items())
    except (OSError, msgspec.DecodeError):
        return False


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Hold the folder against other processes, and sweep up what a killed one left: its parts are never reused."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ModelError(f"another process is downloading this model to {folder}: wait for it") from error
        for scrap in (folder / _PARTS).glob("*.incomplete"):
            scrap.unlink()
        yield


def _download(repository: str, revision: str, folder: Path, progress: Callable[[str, float], None]) -> None:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    stage = f"downloading {repository}"
    progress(stage, 0.0)
    disable_progress_bars()

    def listing() -> _Listing:
        found = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=5)
        wanted = [file for file in found.siblings or [] if _WANTED.fullmatch(file.rfilename)]
        return _Listing(
            found.sha or revision,
            {file.rfilename: file.size or 0 for file in wanted},
            {file.rfilename: file.lfs.sha256 for file in wanted if file.lfs is not None},
        )

    listed: _Listing = _watch(repository, revision, listing, limit=_LISTING_SECONDS)
    commit, files = listed.commit, listed.sizes
    lack = "config.json" if "config.json" not in files else "tokenizer.json" if tokenizer_files(files) is None else None
    if lack is not None:
        raise ModelError(f"{repository} at {revision} has no {lack} on the hub: this kind of model is not served")
    if not any(name.endswith(".safetensors") for name in files):
        raise ModelError(f"{repository} at {revision} has no weights in safetensors, the only format fetched")
    if INDEX in files:
        _watch(repository, revision, lambda: hf_hub_download(repository, INDEX, revision=commit, local_dir=folder))
        shards = set(shard_names(folder))
        files = {name: size for name, size in files.items() if name in shards or not name.endswith(".safetensors")}
    total = sum(files.values())
    _check_space(folder, total - _bytes_here(folder, files))

    def report() -> None:
        progress(stage, min(_bytes_here(folder, files) / max(total, 1), 1.0))

    _watch(
        repository,
        revision,
        lambda: snapshot_download(repository, revision=commit, allow_patterns=list(files), local_dir=folder),
        poll=report,
    )
    lack = missing(folder)
    if lack is not None:
        raise ModelError(f"{repository} at {revision} as the hub has it lacks {lack}")
    digests = _digests(folder, files, lambda work, poll: _watch(repository, revision, work, poll=poll), progress)
    for name, digest in digests.items():
        if listed.digests.get(name, digest) != digest:
            (folder / name).unlink()
            raise ModelError(
                f"{folder / name} has the SHA-256 {digest}, the hub says {listed.digests[name]}: the file was removed, "
                "start again to fetch it anew"
            )
        size = (folder / name).stat().st_size
        log.info("%s  %s", digest, name, extra={"action": "model_file", "model": repository, "bytes": size})
    log.info("%s is at commit %s", repository, commit, extra={"action": "model_fetched", "commit": commit})
    whole = _Complete(commit, {name: _File((folder / name).stat().st_size, digests[name]) for name in files})
    scratch = folder / f"{_MARKER}.new"
    scratch.write_bytes(msgspec.json.encode(whole))
    scratch.replace(folder / _MARKER)
    progress(stage, 1.0)


def _digests(
    folder: Path,
    files: dict[str, int],
    run: Callable[[Callable[[], dict[str, str]], Callable[[], None]], dict[str, str]],
    progress: Callable[[str, float], None],
) -> dict[str, str]:
    """SHA-256 in hex of each file, several at once; `run` does the work beside a poll."""
    read = dict.fromkeys(files, 0)
    total = max(sum(files.values()), 1)

    def digest(name: str) -> str:
        found = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                found.update(piece)
                read[name] += len(piece)
        return found.hexdigest()

    def work() -> dict[str, str]:
        with ThreadPoolExecutor(_HASHERS) as pool:
            return dict(zip(files, pool.map(digest, files), strict=True))

    return run(work, lambda: progress("checking what was downloaded", min(sum(read.values()) / total, 1.0)))


def _bytes_here(folder: Path, files: dict[str, int]) -> int:
    """Bytes of `files` on disk, with those of files the hub's client has not finished."""
    parts = [folder / name for name in files]
    parts += (folder / _PARTS).glob("*.incomplete")
    return sum(part.stat().st_size for part in parts if part.is_file())


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ModelError(f"{folder} needs {needed / 1e9:.1f} GB more and its disk has {free / 1e9:.1f} GB free")


def _watch(
    repository: str,
    revision: str,
    work: Callable[[], Any],
    *,
    limit: float | None = None,
    poll: Callable[[], None] | None = None,
) -> Any:
    """Run `work` on a thread of its own and `poll` here until it is done: Ctrl-C and time limits act at once, even
    while a name is being looked up. The hub client's errors become ModelErrors."""
    outcome: list[tuple[Any, Exception | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except Exception as error:
            outcome.append((None, error))

    worker = threading.Thread(target=run, name="hub", daemon=True)
    worker.start()
    waited = 0.0
    while worker.is_alive() and (limit is None or waited < limit):
        worker.join(_POLL_SECONDS)
        waited += _POLL_SECONDS
        if poll is not None:
            poll()
    if not outcome:
        raise ModelError(f"the hub did not answer about {repository} within {limit:g} s. {_USE_LOCAL}")
    value, error = outcome[0]
    if error is not None:
        raise _explain(repository, revision, error) from error
    return value


def _explain(repository: str, revision: str, error: Exception) -> ModelError:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return ModelError(f"{repository} is gated: accept its terms on the hub and set HF_TOKEN")
    if isinstance(error, RevisionNotFoundError):
        return ModelError(f"{repository} has no revision {revision} on the hub")
    if isinstance(error, RepositoryNotFoundError):
        return ModelError(f"the hub has no model {repository}, or it is private: check the name, or set HF_TOKEN")
    if isinstance(error, HfHubHTTPError):
        return ModelError(f"the hub refused {repository} at {revision}: HTTP {error.response.status_code}")
    if isinstance(error, ModelError):
        return error
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return ModelError(f"{repository} at {revision} is not here and no hub could be reached ({reason}). {_USE_LOCAL}")
