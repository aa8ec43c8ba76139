from __future__ import annotations

import asyncio

import pytest

from stoker.service.merge import merge


class Source:
    def __init__(self, name: str, count: int, *, fail: bool = False, forever: bool = False) -> None:
        self.name, self.count, self.fail, self.forever = name, count, fail, forever
        self.closed = False

    async def items(self):
        try:
            for number in range(self.count):
                await asyncio.sleep(0)
                yield self.name, number
            if self.fail:
                raise ValueError(self.name)
            if self.forever:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_order_within_each_source_is_kept():
    sources = [Source(name, 500) for name in "abc"]
    seen = [item async for item in merge([source.items() for source in sources])]
    assert len(seen) == 1500
    for source in sources:
        assert [number for name, number in seen if name == source.name] == list(range(500))
        assert source.closed


async def test_an_error_closes_all_and_is_raised_as_it_is():
    sources = [Source("a", 3, fail=True), Source("b", 1, forever=True)]
    with pytest.raises(ValueError, match=r"^a$"):
        async for _ in merge([source.items() for source in sources]):
            pass
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("after", [1, 2, 70])
async def test_closing_early_closes_all(after):
    sources = [Source("a", 200), Source("b", 1, forever=True)]
    merged = merge([source.items() for source in sources])
    for _ in range(after):
        await anext(merged)
    await merged.aclose()
    assert all(source.closed for source in sources)


async def test_cancelling_the_reader_closes_all():
    sources = [Source("a", 1, forever=True), Source("b", 1, forever=True)]

    async def read() -> None:
        async for _ in merge([source.items() for source in sources]):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert all(source.closed for source in sources)
