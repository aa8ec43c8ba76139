"""Run by alembic with the connection, lock and transaction of `database.py`; there is no other way to run it."""

from __future__ import annotations

from alembic import context

from stoker.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the transaction around it is ours
    render_as_batch=True,
)
context.run_migrations()
