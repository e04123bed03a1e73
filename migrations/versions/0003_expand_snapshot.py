"""Snapshots of what was folded, so that a start need not read the whole log.

Revision 0003. EXPAND: it only adds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "snapshot",
        sa.Column("position", BIG, nullable=False, autoincrement=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("fold_version", sa.Text, nullable=False),
        sa.Column("created_at_us", BIG, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_snapshot")),
        sqlite_strict=True,
    )
