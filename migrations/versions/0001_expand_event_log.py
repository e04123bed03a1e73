"""The event log, its lease, and the tables beside it.

Revision 0001, the first. EXPAND: it only adds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    head = _create_log()
    _create_projections()
    _create_identities()
    # The database makes the log's identity: a restored copy gets a new one, a migration does not.
    incarnation = (
        sa.func.replace(sa.cast(sa.func.gen_random_uuid(), sa.Text), "-", "")
        if op.get_bind().dialect.name == "postgresql"
        else sa.func.lower(sa.func.hex(sa.func.randomblob(16)))
    )
    op.execute(
        sa.insert(head).values(
            id=1,
            position=0,
            chain=bytes(32),
            epoch=0,
            holder="",
            incarnation=incarnation,
            recorded_at_us=0,
        )
    )


def _create_log() -> sa.Table:
    head = op.create_table(
        "log_head",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("recorded_at_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_head")),
        sa.CheckConstraint("id = 1", name=op.f("ck_log_head_one_row")),
        postgresql_with={"fillfactor": "20"},
        sqlite_strict=True,
    )
    op.create_table(
        "log_event",
        sa.Column("position", BIG, nullable=False, autoincrement=False),
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
        sa.PrimaryKeyConstraint("position", name=op.f("pk_log_event")),
        sa.UniqueConstraint("stream", "version", name=op.f("uq_log_event_stream_version")),
        sa.CheckConstraint(
            "counter_actor IS NULL OR counter_actor <> actor",
            name=op.f("ck_log_event_two_people"),
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "log_batch",
        sa.Column("first_position", BIG, nullable=False, autoincrement=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("root", sa.LargeBinary, nullable=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("recorded_at_us", BIG, nullable=False),
        sa.Column("writer", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("first_position", name=op.f("pk_log_batch")),
        sqlite_strict=True,
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
        sqlite_strict=True,
    )
    return head


def _create_projections() -> None:
    op.create_table(
        "projection",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("position", BIG, nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_projection")),
        sqlite_strict=True,
    )
    op.create_table(
        "view_row",
        sa.Column("view", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("view", "key", name=op.f("pk_view_row")),
        sqlite_strict=True,
    )


def _create_identities() -> None:
    op.create_table(
        "node_contact",
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("last_seen_us", BIG, nullable=False),
        sa.Column("held_generation", BIG),
        sa.Column("outbox_id", sa.Text),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_node_contact")),
        sqlite_strict=True,
    )
    op.create_table(
        "credential",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("role", sa.Text),
        sa.Column("token_hash", sa.Text, nullable=False),
        sa.Column("created_at_us", BIG, nullable=False),
        sa.Column("expires_at_us", BIG),
        sa.Column("revoked_at_us", BIG),
        sa.Column("public_key", sa.Text),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credential")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_credential_token_hash")),
        sa.CheckConstraint("kind IN ('node', 'operator', 'join')", name=op.f("ck_credential_kind")),
        sqlite_strict=True,
    )
    op.create_table(
        "outbox_owner",
        sa.Column("outbox_id", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("pk_outbox_owner")),
        sqlite_strict=True,
    )
