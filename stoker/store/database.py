"""One database, SQLite in a file or PostgreSQL, opened at the newest schema. Reads go through here, writes through the
writer.

SQLite runs in WAL mode with full durability, and every writing transaction begins IMMEDIATE: a reader never blocks a
writer, and no transaction finds out at its end that another was there first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError

T = TypeVar("T")

HEAD = "0001"  # the newest migration: a database that is there already starts without alembic
READERS = 4
BUSY_MS = 30_000
LOCK = 0x53544F4B  # of the migrations, among PostgreSQL's advisory locks

log = logging.getLogger(__name__)


class StoreError(Exception):
    """The database cannot be used; the message says which and why, without its password."""


class Database:
    """`engine` is for the writer and for migrations; everybody else reads."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")

    async def read(self, query: Callable[[sa.Connection], T]) -> T:
        """Run a named query in a thread of the readers."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_now, query)

    def read_now(self, query: Callable[[sa.Connection], T]) -> T:
        with self.engine.connect() as connection:
            return query(connection)

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        self.engine.dispose()


def open_database(url: str) -> Database:
    """Connect, and bring the schema up to date. Raises StoreError."""
    engine = _connect(url)
    shown = engine.url.render_as_string(hide_password=True)
    try:
        if _version(engine) != HEAD:
            _migrate(engine)
    except StoreError as error:
        engine.dispose()
        raise StoreError(f"{shown}: {error}") from error
    except (DBAPIError, OSError) as error:
        engine.dispose()
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreError(f"cannot open the database {shown}: {cause}") from error
    return Database(engine)


def sqlite_url(file: Path) -> str:
    return f"sqlite:///{file}"


def _connect(url: str) -> sa.Engine:
    try:
        made = sa.make_url(url)
    except ArgumentError as error:
        raise StoreError("the database_url is no URL: write sqlite:///FILE or postgresql://USER@HOST/NAME") from error
    if made.drivername == "postgresql":
        made = made.set(drivername="postgresql+psycopg")
    match made.get_backend_name():
        case "sqlite":
            engine = sa.create_engine(made, connect_args={"check_same_thread": False})
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_immediate)
        case "postgresql":
            # a connection that the server has closed meanwhile is noticed before it is used
            engine = sa.create_engine(made, pool_pre_ping=True, pool_size=READERS + 2)
        case other:
            raise StoreError(f"a database of kind {other!r} is not supported: use sqlite or postgresql")
    return engine


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver begins no transactions of its own
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: sa.Connection) -> None:
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def transaction(engine: sa.Engine) -> Generator[sa.Connection]:
    """A transaction that writes."""
    with engine.connect().execution_options(writing=True) as connection, connection.begin():
        yield connection


def _version(engine: sa.Engine) -> str | None:
    """Of the schema; None for an empty database."""
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.scalar(sa.text("SELECT version_num FROM alembic_version"))


def _migrate(engine: sa.Engine) -> None:
    """Run what is missing, in one transaction under a lock: of several processes that start together one migrates."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    known = {revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()}
    with transaction(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        if sa.inspect(connection).has_table("alembic_version"):
            version = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
            if version is not None and version not in known:
                raise StoreError(
                    f"its schema ({version}) was made by a newer Stoker than this one: "
                    "use that one, or restore a backup"
                )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    log.info("schema is at %s", HEAD, extra={"action": "store_migrated"})
