"""Owns the shape of the database: every table, as SQLAlchemy Core. Migrations are compared with it.

Times are integers in microseconds: they are hashed, and a timestamp type would round them. STRICT
makes SQLite refuse values of another type, as PostgreSQL does.
"""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# SQLite makes a primary key the row's own key only if its type is spelled INTEGER.
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

TWO_PEOPLE = "ck_log_event_two_people"
"""The constraint that keeps author and approver apart; the stores look for it by name."""

LOG_HEAD = sa.Table(
    "log_head",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("position", BIG, nullable=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),
    sa.Column("epoch", BIG, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("incarnation", sa.Text, nullable=False),
    sa.Column("recorded_at_us", BIG, nullable=False),
    sa.Column("floor_position", BIG, nullable=False, server_default="0"),
    sa.CheckConstraint("id = 1", name="one_row"),
    # Room on the page for the next version of the one row, so that updates need no index work.
    postgresql_with={"fillfactor": "20"},
    sqlite_strict=True,
)

LOG_EVENT = sa.Table(
    "log_event",
    METADATA,
    sa.Column("position", BIG, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("version", BIG, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("occurred_at_us", BIG, nullable=False),
    sa.Column("recorded_at_us", BIG, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("counter_actor", sa.Text),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Column("leaf", sa.LargeBinary, nullable=False),
    # One index for three jobs: order within a stream, idempotency, optimistic concurrency.
    sa.UniqueConstraint("stream", "version"),
    sa.CheckConstraint("counter_actor IS NULL OR counter_actor <> actor", name="two_people"),
    sqlite_strict=True,
)

LOG_BATCH = sa.Table(
    "log_batch",
    METADATA,
    sa.Column("first_position", BIG, primary_key=True, autoincrement=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("root", sa.LargeBinary, nullable=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),
    sa.Column("recorded_at_us", BIG, nullable=False),
    sa.Column("writer", sa.Text, nullable=False),
    sqlite_strict=True,
)

LOG_FORMAT = sa.Table(
    "log_format",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("level", sa.Integer, nullable=False),
    sa.CheckConstraint("id = 1", name="one_row"),
    sqlite_strict=True,
)

SNAPSHOT = sa.Table(
    "snapshot",
    METADATA,
    sa.Column("position", BIG, primary_key=True, autoincrement=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),
    sa.Column("fold_version", sa.Text, nullable=False),
    sa.Column("created_at_us", BIG, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sqlite_strict=True,
)

ARCHIVE_SEGMENT = sa.Table(
    "archive_segment",
    METADATA,
    sa.Column("first_position", BIG, primary_key=True, autoincrement=False),
    sa.Column("last_position", BIG, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("chain_before", sa.LargeBinary, nullable=False),
    sa.Column("chain_after", sa.LargeBinary, nullable=False),
    sa.Column("recorded_at_us", BIG, nullable=False),
    sqlite_strict=True,
)

STREAM_FLOOR = sa.Table(
    "stream_floor",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("version", BIG, nullable=False),
    sqlite_strict=True,
)

LEASE = sa.Table(
    "lease",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("expires_at_us", BIG, nullable=False),
    sqlite_strict=True,
)

PROJECTION = sa.Table(
    "projection",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("position", BIG, nullable=False),
    sqlite_strict=True,
)

VIEW_ROW = sa.Table(
    "view_row",
    METADATA,
    sa.Column("view", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("position", BIG, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sqlite_strict=True,
)

NODE_CONTACT = sa.Table(
    "node_contact",
    METADATA,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("last_seen_us", BIG, nullable=False),
    # Generation of the directive the node said it holds: what it was told, not what was decided.
    sa.Column("held_generation", BIG),
    sa.Column("outbox_id", sa.Text),
    sqlite_strict=True,
)

CREDENTIAL = sa.Table(
    "credential",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("role", sa.Text),
    sa.Column("token_hash", sa.Text, nullable=False),
    sa.Column("created_at_us", BIG, nullable=False),
    sa.Column("expires_at_us", BIG),
    sa.Column("revoked_at_us", BIG),
    sa.Column("public_key", sa.Text),  # What a node pinned when it got this credential.
    sa.UniqueConstraint("token_hash"),
    sa.CheckConstraint("kind IN ('node', 'operator', 'join')", name="kind"),
    sqlite_strict=True,
)

OUTBOX_OWNER = sa.Table(
    "outbox_owner",
    METADATA,
    sa.Column("outbox_id", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    sqlite_strict=True,
)

MADE_OF_THE_LOG: tuple[sa.Table, ...] = (SNAPSHOT, PROJECTION, VIEW_ROW)
"""What can be thrown away and made anew."""
