"""The floor of the log, the files of its archive, and what answers for the streams in them.

Revision 0004. EXPAND: it only adds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("log_head", sa.Column("floor_position", BIG, nullable=False, server_default="0"))
    op.create_table(
        "archive_segment",
        sa.Column("first_position", BIG, nullable=False, autoincrement=False),
        sa.Column("last_position", BIG, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("chain_before", sa.LargeBinary, nullable=False),
        sa.Column("chain_after", sa.LargeBinary, nullable=False),
        sa.Column("recorded_at_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("first_position", name=op.f("pk_archive_segment")),
        sqlite_strict=True,
    )
    op.create_table(
        "stream_floor",
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_stream_floor")),
        sqlite_strict=True,
    )
