"""Very long prompts through HTTP to a tiny Kimi-K2.5: a whole context of its shape is computed piece by piece, and
whoever asks something short beside it waits for steps, not for the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import makers
import openai
import pytest
from e2e_server import Server

PAGE = 16
STEPS = 3  # at most, from the arrival of a short request to its first token
CHUNK = 1024  # tokens of one step on a CPU


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As small as that shape can be: what is left is attention over the whole context."""
    root = tmp_path_factory.mktemp("model")
    makers.kimi_k25(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, hidden_size=32, intermediate_size=64,
        moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=16, kv_lora_rank=8,
        qk_rope_head_dim=4,
    ).write(root)  # fmt: skip
    server = Server(tmp_path_factory.mktemp("data"), "--model", str(root), "--name", "tiny", "--dtype", "float32")
    yield server.wait_ready()
    server.stop()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("length", [65_536, pytest.param(200_000, marks=pytest.mark.soak)], ids=["64k", "200k"])
async def test_a_long_prompt_and_short_ones_beside_it(kimi: Server, length: int) -> None:
    text = f"{length} " + "word " * (length // 5)  # a token per byte
    async with openai.AsyncOpenAI(base_url=f"{kimi.url}/v1", api_key="none", max_retries=0, timeout=1500.0) as api:

        async def ask(name: str, content: str) -> Any:
            return await api.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": content}],
                max_tokens=2,
                seed=3,
                extra_headers={"x-request-id": name},
            )

        whole = asyncio.create_task(ask(f"{length}-long", text))
        beside = 0
        while not whole.done():
            await ask(f"{length}-short-{beside}", f"How many are {beside} and {length}?")
            beside += not whole.done()  # answered while the long one was on its way
        first, again = (await whole).usage, (await ask(f"{length}-again", text)).usage
    assert first.prompt_tokens > length
    assert first.prompt_tokens_details.cached_tokens == 0
    assert again.prompt_tokens_details.cached_tokens == (first.prompt_tokens - 1) // PAGE * PAGE
    waited = {
        str(line["request"]): line["steps_waited"]
        for line in await _logged(kimi, f"{length}-again")
        if "steps_waited" in line
    }
    assert beside >= 5, "nothing to be shown"
    assert all(1 <= waited[f"{length}-short-{number}"] <= STEPS for number in range(beside)), waited
    assert waited[f"{length}-long"] >= length // CHUNK, "it took that many steps, and the short ones went between"
    assert waited[f"{length}-again"] == 1


async def _logged(server: Server, request: str) -> list[dict[str, Any]]:
    """The server's log, once it has the line of `request`: that comes after the answer."""
    for _ in range(600):
        lines = server.lines()
        if any(line.get("request") == request for line in lines):
            return lines
        await asyncio.sleep(0.05)
    raise AssertionError(f"no line of {request}")
