"""${message}

Revision ${up_revision}, after ${down_revision}. Created ${create_date}.

Expand or contract, never both. An EXPAND migration (release N) only adds: tables, nullable columns,
indexes. The previous release keeps running on it. A CONTRACT migration (release N+1 or later)
removes what no running release reads any more. Name the file NNNN_expand_... or NNNN_contract_...
log_event is append-only: its rows are never rewritten. Views may be dropped and rebuilt.
There is no downgrade: restore a backup.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "raise NotImplementedError"}
