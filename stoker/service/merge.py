"""Several event streams as one. Owns the tasks that read them; knows nothing of what flows through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")

_WAITING = 64  # items read ahead of the consumer, over all sources


async def merge(sources: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[T]:
    """Items of all sources as they come, in order within each source.

    The first error ends everything. However this generator ends - exhausted, by an error, closed or cancelled -
    every source is closed before it returns.
    """
    queue: asyncio.Queue[T | None] = asyncio.Queue(_WAITING)

    async def pump(source: AsyncGenerator[T]) -> None:
        async with aclosing(source):
            async for item in source:
                await queue.put(item)

    async def pump_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for source in sources:
                    group.create_task(pump(source))
        finally:
            closing.set()
            if not queue.full():
                queue.put_nowait(None)

    closing = asyncio.Event()
    pumps = asyncio.create_task(pump_all())
    try:
        while not (closing.is_set() and queue.empty()):
            item = await queue.get()
            if item is not None:
                yield item
        await pumps
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        pumps.cancel()
        await asyncio.gather(pumps, return_exceptions=True)
