"""The writer: in order, in groups, one failure at a time, and not shaken by a lost connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from stoker.store import writer as module
from stoker.store.database import Database
from stoker.store.schema import org
from stoker.store.writer import Writer
from stoker.types.errors import ErrorKind, StokerError


def add(name: str) -> Callable[[sa.Connection], str]:
    def command(connection: sa.Connection) -> str:
        connection.execute(org.insert().values(id=name, name=name, created=0.0))
        return name

    return command


def names(database: Database) -> list[str]:
    return database.read_now(lambda c: list(c.scalars(sa.select(org.c.id).order_by(org.c.id))))


async def test_results_come_after_their_commit(database: Database, writer: Writer) -> None:
    for name in ("a", "b"):
        assert await writer.run(add(name)) == name
        assert name in names(database)


async def test_a_command_that_fails_fails_alone(database: Database, writer: Writer) -> None:
    def wrong(connection: sa.Connection) -> None:
        add("half")(connection)
        raise ValueError("wrong")

    hold = threading.Event()
    waiting = writer.submit(lambda _: hold.wait(10))  # what follows becomes one group
    futures = [writer.submit(command) for command in (add("a"), add("a"), wrong, add("b"))]
    hold.set()
    results = await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
    assert waiting.result() is True
    assert (results[0], results[3]) == ("a", "b")
    assert isinstance(results[1], IntegrityError)
    assert isinstance(results[2], ValueError)
    assert names(database) == ["a", "b"]


async def test_many_share_a_commit(database: Database, writer: Writer) -> None:
    commits = 0

    def count(_: object) -> None:
        nonlocal commits
        commits += 1

    sa.event.listen(database.engine, "commit", count)
    hold = threading.Event()
    writer.submit(lambda _: hold.wait(10))
    futures = [writer.submit(add(f"{number:03}")) for number in range(300)]
    hold.set()
    await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert len(names(database)) == 300
    assert commits <= 3


async def test_a_lost_connection_is_made_again(
    database: Database, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0,))
    lost = 0

    def lose(connection: sa.Connection) -> None:
        nonlocal lost
        lost += 1
        if lost <= 2:
            raise sa.exc.OperationalError("x", {}, Exception("gone"), connection_invalidated=True)

    future = writer.submit(lose)
    await writer.run(add("a"))
    assert future.result() is None
    assert lost == 3
    assert names(database) == ["a"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_connections_that_the_server_ends(
    database: Database, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0,))
    await writer.run(add("a"))
    killed = 0

    def ended(connection: sa.Connection) -> None:
        nonlocal killed
        mine = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        if not killed:
            killed = 1
            database.read_now(lambda c: c.execute(sa.text("SELECT pg_terminate_backend(:p)"), {"p": mine}))
        add("b")(connection)

    await writer.run(ended)
    assert names(database) == ["a", "b"]


async def test_a_database_that_stays_away(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0,))
    monkeypatch.setattr(module, "PATIENCE", 0.0)

    def lose(connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("x", {}, Exception("gone"), connection_invalidated=True)

    with pytest.raises(sa.exc.OperationalError):
        await writer.run(lose)
    assert await writer.run(lambda _: 1) == 1


async def test_too_much_waiting_is_refused(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 3)
    hold, begun = threading.Event(), threading.Event()

    def stand(_: sa.Connection) -> None:
        begun.set()
        hold.wait(10)

    writer.submit(stand)
    await asyncio.to_thread(begun.wait, 10)
    futures = [writer.submit(add(str(number))) for number in range(3)]
    with pytest.raises(StokerError) as caught:
        writer.submit(add("more"))
    assert caught.value.kind is ErrorKind.CAPACITY
    hold.set()
    await asyncio.gather(*map(asyncio.wrap_future, futures))


def test_closing_writes_what_waits(database: Database) -> None:
    made = Writer(database)
    for number in range(50):
        made.submit(add(f"{number:02}"))
    made.close()
    assert len(names(database)) == 50
    with pytest.raises(StokerError):
        made.submit(add("late"))
