"""From a specification to a running core: load the graph, size the pool, join the parts."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from stoker.engine.blocks import BlockPool
from stoker.engine.compiler import Compiler, Grammars
from stoker.engine.core import EngineCore
from stoker.engine.executor import LocalExecutor, bytes_per_state, kv_bytes_per_token
from stoker.engine.images import ImageLimits
from stoker.engine.limits import Limits
from stoker.engine.memory import divide
from stoker.engine.scheduler import Scheduler
from stoker.engine.spec import EngineSpec
from stoker.engine.states import StatePool
from stoker.kernels.native import library
from stoker.models.context import Graph
from stoker.models.loader import load_graph, preferred_dtype
from stoker.models.source import ModelError
from stoker.models.text.model import TextModel
from stoker.types.wire import Ready

log = logging.getLogger(__name__)

CPU_STEP_TOKENS = 512  # about the largest chunk that a laptop computes while a stream hardly notices
GPU_STEP_TOKENS = 8192
PREFILL_STEPS = 2  # how many steps' budgets a step may take while nobody decodes
CPU_KV_BYTES = 576 << 20
CPU_IMAGE_BYTES = 128 << 20  # of features of images, for the time between their encoding and their last token
GPU_IMAGE_BYTES = 1 << 30
GPU_KV_SHARE = 0.85  # of what is free once the weights are loaded


def build_core(spec: EngineSpec, progress: Callable[[str, float], None]) -> EngineCore:
    """Raises ModelError when the model cannot be loaded or its KV cache does not fit."""
    began = time.monotonic()
    config = spec.config
    torch.set_grad_enabled(False)
    threads = config.threads or (max(1, torch.get_num_threads() // spec.engines) if spec.engines > 1 else None)
    if threads is not None:
        torch.set_num_threads(threads)
    device, sharers = _device(config.device, spec)
    dtype = preferred_dtype(device) if config.dtype == "auto" else getattr(torch, config.dtype)
    if device.type == "cpu" and isinstance(native := library.load(), str):
        log.warning("native kernels %s; plain torch works too, more slowly", native, extra={"action": "no_kernels"})
    graph = load_graph(spec.files, dtype=dtype, device=device, progress=progress)
    _trim_heap()
    context = min(config.context or spec.info.context, spec.info.context)
    per_token, per_state = kv_bytes_per_token(graph, dtype), bytes_per_state(graph, dtype)
    budget = config.kv_memory or _kv_budget(device, context * per_token + per_state, sharers)
    blocks, slots = divide(
        budget,
        per_token,
        per_state,
        block_size=config.block_size,
        max_running=config.max_running,
        states=config.state_slots,
    )
    if blocks < 1:
        beside = f" beside {slots} states of {per_state:,} bytes" if slots else ""
        raise ModelError(f"{budget:,} bytes of KV memory hold no block{beside}: one token takes {per_token:,} bytes")
    progress("reserving the KV cache", 1.0)
    grammars = Grammars(lambda: TextModel.load(spec.files))
    executor = LocalExecutor(
        graph,
        grammars,
        num_blocks=blocks,
        block_size=config.block_size,
        num_states=slots,
        device=device,
        dtype=dtype,
    )
    step_tokens = config.step_tokens or (CPU_STEP_TOKENS if device.type == "cpu" else GPU_STEP_TOKENS)
    limits = Limits(
        vocab_size=graph.vocab_size,
        context=context,
        step_tokens=step_tokens,
        prefill_tokens=config.prefill_tokens or PREFILL_STEPS * step_tokens,
        max_running=min(config.max_running, slots) if slots else config.max_running,
        max_waiting=config.max_waiting,
        lane_reserve=config.lane_reserve,
        images=_image_limits(graph, dtype, device, step_tokens),
    )
    pool = BlockPool(blocks, config.block_size)
    every = config.snapshot_tokens and -(-config.snapshot_tokens // config.block_size) * config.block_size
    scheduler = Scheduler(
        pool,
        limits,
        key=bytes.fromhex(spec.chain_key),
        fingerprint=spec.info.fingerprint,
        states=StatePool(slots, pool, every) if slots else None,
    )
    ready = Ready(
        context=scheduler.context,
        kv_tokens=blocks * config.block_size,
        block_size=config.block_size,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        load_seconds=time.monotonic() - began,
    )
    return EngineCore(scheduler, executor, Compiler(grammars), eos_ids=spec.info.eos_ids, ready=ready)


def _image_limits(graph: Graph, dtype: torch.dtype, device: torch.device, step_tokens: int) -> ImageLimits | None:
    if graph.vision is None:
        return None
    memory = CPU_IMAGE_BYTES if device.type == "cpu" else GPU_IMAGE_BYTES
    return ImageLimits(token_bytes=graph.vision.hidden * dtype.itemsize, memory=memory, step_tokens=step_tokens)


def _device(name: str, spec: EngineSpec) -> tuple[torch.device, int]:
    """The device, and how many engines share it. With `auto` they are dealt out over the GPUs in turn."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and count:
        alike = range(spec.place % count, spec.engines, count)
        return torch.device("cuda", spec.place % count), len(alike)
    try:
        device = torch.device("cpu" if name == "auto" else name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device, spec.engines


def _kv_budget(device: torch.device, one_context: int, sharers: int) -> int:
    """On a GPU most of what is free, a part of it where others come too. On a CPU enough for two full contexts or
    `CPU_KV_BYTES`, within its part of half of the memory that is available: the pool is touched only as it fills."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_KV_SHARE / sharers)
    return min(max(2 * one_context, CPU_KV_BYTES), _available_memory() // (2 * sharers))


def _trim_heap() -> None:
    """Give back what loading freed: glibc keeps tens of MB of it otherwise. Elsewhere there is no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _available_memory() -> int:
    """Bytes that can be taken without swapping; where the system does not say, half of what is built in."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
