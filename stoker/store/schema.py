"""The tables, as SQLAlchemy Core knows them. Migrations make them; a test holds the two together.

Ids are text, money is whole nano-dollars, times are unix seconds (float for moments, integer days for windows). Rows of
`usage` are only ever added. Nothing here holds a prompt, an answer or a secret: keys are hashes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

org = Table(
    "org",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("created", Double, nullable=False),
)

project = Table(
    "project",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("org", String(64), ForeignKey("org.id"), nullable=False),
    Column("name", String(200), nullable=False),
    Column("created", Double, nullable=False),
    Column("limits", LargeBinary, nullable=False),  # JSON, `stoker.types.account.Limits`
    UniqueConstraint("org", "name"),
)

key = Table(
    "key",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("project", String(64), ForeignKey("project.id"), nullable=False),
    Column("name", String(200), nullable=False),
    Column("prefix", String(32), nullable=False),  # the first characters, to be recognised by
    Column("sha256", String(64), nullable=False, unique=True),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Column("terms", LargeBinary, nullable=False),  # JSON, `stoker.types.account.Terms`
    Index(None, "project"),
)

usage = Table(
    "usage",
    metadata,
    Column("id", String(128), primary_key=True),  # of the request or batch line: a second settlement changes nothing
    Column("time", Double, nullable=False),
    Column("holder", String(64), nullable=False),  # the process whose quota paid for it
    Column("org", String(64), nullable=False),
    Column("project", String(64), nullable=False),
    Column("key", String(64), nullable=False),
    Column("tenant", String(200), nullable=False),
    Column("session", String(256)),
    Column("parent", String(256)),
    Column("model", String(200), nullable=False),
    Column("replica", String(200)),
    Column("lane", Integer, nullable=False),
    Column("route", String(64), nullable=False),
    Column("zone", String(64)),
    Column("outcome", String(32), nullable=False),
    Column("source", String(16), nullable=False),
    Column("input_uncached", BigInteger, nullable=False),
    Column("input_cached", BigInteger, nullable=False),
    Column("output_text", BigInteger, nullable=False),
    Column("output_reasoning", BigInteger, nullable=False),
    Column("wasted", LargeBinary, nullable=False),  # JSON: tokens by cause
    Column("book", String(128), nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("batch", String(64)),
    Column("custom_id", String(512)),
    Column("attempt", Integer),
    Column("ttft_ms", Double),
    Column("duration_ms", Double),
    Index(None, "time"),
    Index(None, "key", "time"),
    Index(None, "project", "time"),
    Index(None, "session"),
    Index(None, "batch"),
    Index(None, "holder"),
)

# A budget's window: how much of it has been handed out to processes. Never more than the budget.
window = Table(
    "window",
    metadata,
    Column("subject", String(96), primary_key=True),  # key:ID or project:ID
    Column("period", String(8), primary_key=True),  # day or month
    Column("start", BigInteger, primary_key=True),
    Column("granted", BigInteger, nullable=False),
)

# What a process was handed of a window. It settles usage against it; what is left goes back when the process ends or,
# if it was killed, when its lease has run out.
lease = Table(
    "lease",
    metadata,
    Column("holder", String(64), primary_key=True),
    Column("subject", String(96), primary_key=True),
    Column("period", String(8), primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("granted", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("until", Double, nullable=False),
    Index(None, "until"),
)
