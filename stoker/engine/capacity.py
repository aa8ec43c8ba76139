"""What a model takes and whether it fits, from headers alone: the report behind `stoker check`.

The graph is built on the meta device from the tensors' shapes, so the report is about what would really be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stoker.config import EngineConfig
from stoker.engine.build import GPU_KV_SHARE
from stoker.engine.memory import divide
from stoker.models import examples
from stoker.models.context import CacheSpec, PagedSpec, RecurrentSpec
from stoker.models.info import context_length
from stoker.models.loader import Family, family_of
from stoker.models.shards import Ranks, spread
from stoker.models.source import ModelError, read_json, resolve, shard_names
from stoker.models.weights.checkpoint import Source
from stoker.models.weights.described import DescribedSource
from stoker.models.weights.gguf import GGUFSource
from stoker.models.weights.header import read_header
from stoker.models.weights.quantization import QuantizedSource, take_scheme
from stoker.models.weights.survey import Findings, Survey

HARDWARE = {"h100": 80 << 30, "h200": 141_000_000_000, "b200": 180 << 30}
"""Bytes of memory of one device, as its maker states them."""

_MTP_KEYS = ("num_nextn_predict_layers", "num_mtp_layers")

KV_BYTES = 2  # of a value in the cache: bfloat16


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `stoker check` found. None is what could not be found out: without a graph nothing is known of the tensors
    it needs and the caches it keeps, without hardware not whether it fits.

    `weights_gib` is everything in the files, `bytes_per_rank` what the graph loads of it; `mtp_layers` predict further
    tokens, are whole in the files, and would add `mtp_gib` if they were asked for. `state_bytes_per_sequence` is
    what layers keep of a sequence however long it is. `kv_budget_tokens` are those of the whole replica, beside as many
    states as an engine keeps; it fits if one sequence of the model's full context does.
    """

    model: str
    model_type: str
    ok: bool
    problems: list[str]
    tensors: int
    weights_gib: float
    missing: list[str] | None
    unexpected: list[str] | None
    misshapen: list[str] | None
    mtp_layers: int | None
    mtp_gib: float | None
    ranks: int
    bytes_per_rank: int
    kv_bytes_per_token: int | None
    kv_bytes_per_token_and_rank: int | None
    state_bytes_per_sequence: int | None
    context: int | None
    hardware: str | None
    kv_budget_tokens: int | None
    fits: bool | None


class _Model(msgspec.Struct, frozen=True):
    name: str
    config: dict[str, Any]
    source: Source
    problems: list[str]


def check_model(model: str, ranks: Ranks, hardware: str | None) -> Report:
    """A model folder, of which some or all weights may be absent, a .gguf file, or demo. Raises ModelError."""
    path = Path(model).expanduser()
    return _report(_folder(path) if (path / "config.json").is_file() else _single(model, path), ranks, hardware)


def check_example(name: str, ranks: Ranks, hardware: str | None) -> Report:
    """A published model that is known by its headers."""
    example = examples.read(name)
    return _report(_Model(name, example.config, _described(name, example.config, example.tensors), []), ranks, hardware)


def _folder(root: Path) -> _Model:
    config, problems = read_json(root / "config.json"), list[str]()
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for shard in shard_names(root):
        path = root / shard
        if not path.is_file():
            problems.append(f"the file {shard} is missing")
            continue
        header = read_header(path)
        if max((tensor.end for tensor in header.values()), default=0) > path.stat().st_size:
            problems.append(f"the file {shard} is cut short")
        problems += [f"the tensor {name} is in several files" for name in tensors.keys() & header.keys()]
        tensors |= {name: (tensor.dtype, tensor.shape) for name, tensor in header.items()}
    return _Model(root.resolve().name, config, _described(str(root), config, tensors), problems)


def _single(model: str, path: Path) -> _Model:
    if model != "demo" and not path.exists():
        raise ModelError(f"there is no model at {path}: give a folder that holds config.json, a .gguf file, or demo")
    files = resolve(model, revision=None, data_dir=path, progress=lambda stage, fraction: None)
    if files.gguf is None:
        raise ModelError(f"{path} holds no config.json and no .gguf file")
    source = GGUFSource(Path(files.gguf))
    return _Model(files.name, source.config(), source, [])


def _described(where: str, config: dict[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Source:
    scheme, source = take_scheme(config, where), DescribedSource(where, tensors)
    return source if scheme is None else QuantizedSource(source, scheme)


def _report(model: _Model, ranks: Ranks, hardware: str | None) -> Report:
    source, problems = model.source, list(model.problems)
    text: Mapping[str, Any] = model.config.get("text_config") or model.config
    findings, caches, mtp = None, None, None
    try:
        family = family_of(model.config, source.where)
        survey = Survey(source)
        caches, findings = family.graph(survey).caches, survey.findings
        mtp = _mtp(family, source, findings) if any(text.get(key) for key in _MTP_KEYS) else (0, 0)
    except ModelError as error:
        problems.append(str(error))
    used = sorted(source.names) if findings is None else [name for name in findings.used if name in source.names]
    heads = text.get("num_attention_heads")
    kv_heads = min((spec.kv_heads for spec in caches or () if isinstance(spec, PagedSpec)), default=None)
    shares = spread(source, used, ranks, heads if isinstance(heads, int) else ranks.tp, kv_heads)
    problems += shares.refused
    per_token = None if caches is None else sum(spec.bytes_per_token(KV_BYTES) for spec in caches)
    per_rank = None if caches is None else sum(_share(spec, ranks) for spec in caches)
    states = [spec.bytes_per_sequence(KV_BYTES) for spec in caches or () if isinstance(spec, RecurrentSpec)]
    context = context_length(text)
    context = context if isinstance(context, int) else None
    budget = fits = None
    if hardware is not None:
        free = HARDWARE[hardware] - shares.bytes_per_rank
        if per_rank:
            running = EngineConfig().max_running
            memory, state = max(int(free * GPU_KV_SHARE), 0), sum(states) // ranks.tp
            budget = divide(memory, per_rank, state, block_size=1, max_running=running).blocks * ranks.replicas
        fits = free > 0 if budget is None or context is None else budget // ranks.replicas >= context
    return Report(
        model=model.name,
        model_type=str(model.config.get("model_type")),
        ok=not problems and not _wrong(findings) and fits is not False,
        problems=problems,
        tensors=len(source.names),
        weights_gib=round(sum(map(source.size, source.names)) / 2**30, 2),
        missing=None if findings is None else findings.missing,
        unexpected=None if findings is None else findings.unexpected,
        misshapen=None if findings is None else findings.misshapen,
        mtp_layers=None if mtp is None else mtp[0],
        mtp_gib=None if mtp is None else round(mtp[1] / 2**30, 2),
        ranks=ranks.count,
        bytes_per_rank=shares.bytes_per_rank,
        kv_bytes_per_token=per_token,
        kv_bytes_per_token_and_rank=per_rank,
        state_bytes_per_sequence=None if caches is None else sum(states),
        context=context,
        hardware=hardware,
        kv_budget_tokens=budget,
        fits=fits,
    )


def _mtp(family: Family, source: Source, without: Findings) -> tuple[int, int]:
    """How many layers that predict further tokens there are, and their bytes; none unless all of them are whole."""
    survey = Survey(source, mtp=True)
    try:
        layers = len(family.graph(survey).mtp)
    except ModelError:
        return 0, 0
    found = survey.findings
    if len(found.missing) > len(without.missing) or len(found.misshapen) > len(without.misshapen):
        return 0, 0
    return layers, sum(map(source.size, set(found.used).difference(without.used)))


def _wrong(findings: Findings | None) -> bool:
    return findings is None or bool(findings.missing or findings.unexpected or findings.misshapen)


def _share(spec: CacheSpec, ranks: Ranks) -> int:
    """Bytes that a rank keeps of one token in one layer: a part of the KV heads, or all of a latent of its tokens."""
    whole = spec.bytes_per_token(KV_BYTES)
    if isinstance(spec, PagedSpec):
        return whole // min(ranks.tp, spec.kv_heads)
    return -(-whole // ranks.cp)
