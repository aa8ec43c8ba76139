"""The one writer: a thread that runs what is handed to it in groups, one commit a group.

Commits wait for the disk; requests must not. While one group is being committed the next one gathers, so the more there
is to write the more a commit carries. Each command runs within a savepoint: one that fails fails alone.

When the connection is lost, the group runs again on a new one. It may have been committed just before, so a command
must be safe to run twice: rows have ids of their own, and what exists already is left as it is.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from stoker.store.database import Database, transaction
from stoker.types.errors import ErrorKind, StokerError

T = TypeVar("T")

GROUP = 512  # commands in one transaction
WAITING = 16_384  # commands that may wait; more are refused
PAUSES = (0.05, 0.2, 1.0, 3.0)  # seconds before a group is tried again; the last one repeats
PATIENCE = 60.0  # seconds that a database may be away before what waits is given up

Command = Callable[[sa.Connection], Any]

log = logging.getLogger(__name__)


class Writer:
    """Commands run in the order in which they were handed over. `close` runs all that wait."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: queue.Queue[tuple[Command, Future[Any]] | None] = queue.Queue()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="store-write", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        return self._waiting.qsize()

    async def run(self, command: Callable[[sa.Connection], T]) -> T:
        """What `command` returns, once it is committed. Raises what it raised."""
        return await asyncio.wrap_future(self.submit(command))

    def submit(self, command: Callable[[sa.Connection], T]) -> Future[T]:
        """The same from any thread. Raises StokerError while too much waits or when closed."""
        if self._closing:
            raise StokerError(ErrorKind.UNAVAILABLE, "stopping", "The server is stopping.", retry_after=5.0)
        if self._waiting.qsize() >= WAITING:
            raise StokerError(
                ErrorKind.CAPACITY, "store_busy", "The database does not keep up at present.", retry_after=5.0
            )
        done: Future[T] = Future()
        self._waiting.put((command, done))
        return done

    def close(self) -> None:
        """Wait until all that was handed over is written, or given up."""
        self._closing = True
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            group = [first]
            while len(group) < GROUP:
                try:
                    item = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if item is None:
                    self._waiting.put(None)
                    break
                group.append(item)
            self._commit(group)

    def _commit(self, group: list[tuple[Command, Future[Any]]]) -> None:
        outcomes: list[Any]
        try:
            outcomes = self._run_until_done(group)
        except Exception as error:  # the thread must outlive whatever a driver does
            log.exception("%d writes are lost", len(group), extra={"action": "store_lost"})
            outcomes = [_Failed(error)] * len(group)
        for (_, done), outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, _Failed):
                done.set_exception(outcome.error)
            else:
                done.set_result(outcome)

    def _run_until_done(self, group: list[tuple[Command, Future[Any]]]) -> list[Any]:
        """Raises what is left of the database's troubles after `PATIENCE`."""
        given_up = time.monotonic() + PATIENCE
        for attempt in count():
            try:
                return self._run(group)
            except DBAPIError as error:
                passing = error.connection_invalidated or isinstance(error, OperationalError)
                if not passing or time.monotonic() > given_up:
                    raise
                log.warning("the database does not answer; trying again", extra={"action": "store_retry"})
                self._database.engine.dispose()
                time.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        raise AssertionError("counting does not end")

    def _run(self, group: list[tuple[Command, Future[Any]]]) -> list[Any]:
        outcomes: list[Any] = []
        with transaction(self._database.engine) as connection:
            for command, _ in group:
                try:
                    with connection.begin_nested():
                        outcomes.append(command(connection))
                except OperationalError:
                    raise
                except DBAPIError as error:
                    if error.connection_invalidated:
                        raise
                    outcomes.append(_Failed(error))
                except Exception as error:
                    outcomes.append(_Failed(error))
        return outcomes


class _Failed:
    """One command's own error; apart from results, which may be exceptions too."""

    def __init__(self, error: Exception) -> None:
        self.error = error
