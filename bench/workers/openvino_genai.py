"""OpenVINO GenAI's continuous batching pipeline with prefix caching, driven step by step in-process (no HTTP)."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.workers.loop import claim_stdout, serve
from bench.workloads import Timing, Timings

KV_GB = 3


@dataclass
class _Request:
    handle: Any
    start: float
    prompt: int
    made: int = 0
    first: float = 0.0
    last: float = 0.0


class OpenvinoEngine:
    def __init__(self, folder: str) -> None:
        # Only this peer's own environment has these modules.
        self._openvino: Any = importlib.import_module("openvino")
        self._genai: Any = importlib.import_module("openvino_genai")
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = KV_GB
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        self._pipe: Any = self._genai.ContinuousBatchingPipeline(
            folder, scheduler, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}
        )
        self._next_id = 0

    def single(self, prompt: list[int], output: int) -> Timings:
        return self.concurrent([prompt], output)

    def concurrent(self, prompts: list[list[int]], output: int) -> Timings:
        return self._drive([self._add(prompt, output) for prompt in prompts], output, lambda index: None)

    def agent(self, sessions: list[list[list[int]]], output: int) -> Timings:
        """Each session's next turn enters as soon as its last one is done, as over HTTP."""
        turns = [iter(turns) for turns in sessions]

        def following(index: int) -> _Request | None:
            prompt = next(turns[index], None)
            return None if prompt is None else self._add(prompt, output)

        starts = [following(index) for index in range(len(sessions))]
        return self._drive([start for start in starts if start is not None], output, following)

    def _add(self, prompt: list[int], output: int) -> _Request:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = output
        config.ignore_eos = True
        config.do_sample = False
        ids = self._openvino.Tensor(self._openvino.Type.i64, [1, len(prompt)])
        ids.data[:] = [prompt]
        self._next_id += 1
        start = time.perf_counter()
        return _Request(self._pipe.add_request(self._next_id, ids, config), start, len(prompt))

    def _drive(self, running: list[_Request], output: int, following: Callable[[int], _Request | None]) -> Timings:
        """Step until all are done; `following(slot)` gives what comes after the request in that slot."""
        slots: list[_Request | None] = list(running)
        done: list[_Request] = []
        while any(slots):
            self._pipe.step()
            now = time.perf_counter()
            for index, request in enumerate(slots):
                if request is None:
                    continue
                while request.handle.can_read():
                    for part in request.handle.read().values():
                        request.made += len(part.generated_ids)
                    request.first = request.first or now
                    request.last = now
                if request.made >= output:
                    done.append(request)
                    slots[index] = following(index)
                elif not self._pipe.has_non_finished_requests():
                    raise RuntimeError(f"made {request.made} of {output} tokens")
        return Timings([Timing(one.start, one.first, one.last, one.prompt, one.made) for one in done])


def main() -> None:
    answers = claim_stdout()
    serve(OpenvinoEngine(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
