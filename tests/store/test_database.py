"""Opening: the newest schema, once, whoever comes first; and errors that say which database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from stoker.store.database import HEAD, Database, StoreError, open_database, sqlite_url, transaction
from stoker.store.schema import metadata


def test_migrations_make_the_schema(database: Database) -> None:
    with database.engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), metadata)
        assert found == []
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == HEAD


def test_processes_that_start_together_migrate_once(database_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        for opened in threads.map(open_database, [database_url] * 4):
            opened.close()


def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    opened = open_database(database_url)
    with transaction(opened.engine) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    opened.close()
    with pytest.raises(StoreError, match=r"9999.*newer Stoker"):
        open_database(database_url)


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    def count() -> int:
        return (
            database.read_now(lambda c: c.scalar(sa.select(sa.func.count()).select_from(metadata.tables["org"]))) or 0
        )

    row = {"id": "o", "name": "n", "created": 0.0}
    with pytest.raises(sa.exc.IntegrityError), transaction(database.engine) as connection:
        connection.execute(metadata.tables["org"].insert(), [row, row])
    assert count() == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "no URL"),
        ("mysql://host/name", "'mysql' is not supported"),
        ("postgresql://me:secret@127.0.0.1:1/name", r"postgresql\+psycopg://me:\*\*\*@127.0.0.1:1/name"),
    ],
)
def test_what_cannot_be_opened(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        open_database(url)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("not a database at all, but a text that is long enough to be looked at" * 20)
    with pytest.raises(StoreError, match=r"x\.db: file is not a database"):
        open_database(sqlite_url(tmp_path / "x.db"))
    with pytest.raises(StoreError, match="unable to open"):
        open_database(sqlite_url(tmp_path / "no" / "x.db"))
