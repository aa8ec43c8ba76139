"""transformers' generate() in bf16 with SDPA, as its users run it: one request at a time, or one batch."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from bench.workers.loop import claim_stdout, serve
from bench.workloads import Timing, Timings


class _Clock(BaseStreamer):
    """Notes when each step's tokens came out; the first call only carries the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        if self._prompt_seen:
            self.times.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        pass


class TransformersEngine:
    def __init__(self, folder: str) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
        self._model = model.eval()

    def single(self, prompt: list[int], output: int) -> Timings:
        return self._generate([prompt], output)

    def concurrent(self, prompts: list[list[int]], output: int) -> Timings:
        return self._generate(prompts, output)

    def agent(self, sessions: list[list[list[int]]], output: int) -> None:
        return None

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], output: int) -> Timings:
        """One batch; all prompts of a batch are of one length, so nothing is padded."""
        ids = torch.tensor(prompts)
        config = GenerationConfig(
            max_new_tokens=output, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=True
        )
        # generate() allows a streamer for a batch of one only; for a batch the first token is not seen on its own.
        clock = _Clock() if len(prompts) == 1 else None
        start = time.perf_counter()
        made: Any = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=clock
        )
        last = time.perf_counter()
        if made.shape[1] != ids.shape[1] + output:
            raise RuntimeError(f"made {made.shape[1] - ids.shape[1]} of {output} tokens")
        first = clock.times[0] if clock else last
        return Timings([Timing(start, first, last, len(prompt), output) for prompt in prompts])


def main() -> None:
    answers = claim_stdout()
    serve(TransformersEngine(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
