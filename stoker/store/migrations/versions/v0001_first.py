"""Keys and their owners, usage, quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "lease",
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=96), nullable=False),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("granted", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("holder", "subject", "period", "start", name=op.f("pk_lease")),
    )
    op.create_index(op.f("ix_lease_until"), "lease", ["until"], unique=False)
    op.create_table(
        "org",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_org")),
        sa.UniqueConstraint("name", name=op.f("uq_org_name")),
    )
    op.create_table(
        "usage",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("org", sa.String(length=64), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=200), nullable=False),
        sa.Column("session", sa.String(length=256), nullable=True),
        sa.Column("parent", sa.String(length=256), nullable=True),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("replica", sa.String(length=200), nullable=True),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("route", sa.String(length=64), nullable=False),
        sa.Column("zone", sa.String(length=64), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("input_uncached", sa.BigInteger(), nullable=False),
        sa.Column("input_cached", sa.BigInteger(), nullable=False),
        sa.Column("output_text", sa.BigInteger(), nullable=False),
        sa.Column("output_reasoning", sa.BigInteger(), nullable=False),
        sa.Column("wasted", sa.LargeBinary(), nullable=False),
        sa.Column("book", sa.String(length=128), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.String(length=64), nullable=True),
        sa.Column("custom_id", sa.String(length=512), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("ttft_ms", sa.Double(), nullable=True),
        sa.Column("duration_ms", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
    )
    op.create_index(op.f("ix_usage_batch"), "usage", ["batch"], unique=False)
    op.create_index(op.f("ix_usage_holder"), "usage", ["holder"], unique=False)
    op.create_index(op.f("ix_usage_key_time"), "usage", ["key", "time"], unique=False)
    op.create_index(op.f("ix_usage_project_time"), "usage", ["project", "time"], unique=False)
    op.create_index(op.f("ix_usage_session"), "usage", ["session"], unique=False)
    op.create_index(op.f("ix_usage_time"), "usage", ["time"], unique=False)
    op.create_table(
        "window",
        sa.Column("subject", sa.String(length=96), nullable=False),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("granted", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "period", "start", name=op.f("pk_window")),
    )
    op.create_table(
        "project",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("org", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("limits", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["org.id"], name=op.f("fk_project_org")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
        sa.UniqueConstraint("org", "name", name=op.f("uq_project_org_name")),
    )
    op.create_table(
        "key",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("prefix", sa.String(length=32), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=True),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.Column("terms", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["project.id"], name=op.f("fk_key_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_key")),
        sa.UniqueConstraint("sha256", name=op.f("uq_key_sha256")),
    )
    op.create_index(op.f("ix_key_project"), "key", ["project"], unique=False)
