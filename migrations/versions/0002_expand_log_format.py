"""The level of the log: which stored forms may be written into it.

Revision 0002. EXPAND: it only adds. A log from before holds what the first release wrote: level 1.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    made = op.create_table(
        "log_format",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("level", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_format")),
        sa.CheckConstraint("id = 1", name=op.f("ck_log_format_one_row")),
        sqlite_strict=True,
    )
    op.execute(sa.insert(made).values(id=1, level=1))
