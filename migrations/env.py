"""Runs the migrations on the connection that `smgate.log.migrate` gives, inside its transaction.

The caller holds the lock against a second migration and has set the lock and statement timeouts.
"""

from __future__ import annotations

from alembic import context

from smgate.log import tables

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("Run migrations by `smgate db upgrade`: it takes the lock and the timeouts.")

# One transaction for all: a migration that fails leaves the database at the old revision. SQLite
# can do that too, only not by Alembic's default.
context.configure(
    connection=connection,
    target_metadata=tables.METADATA,
    transactional_ddl=True,
    transaction_per_migration=False,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
