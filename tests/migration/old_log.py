"""A log as the release of a revision left it."""

from __future__ import annotations

import json
import pathlib

import alembic.command
import sqlalchemy as sa

from smgate.log import database, migrate

HERE = pathlib.Path(__file__).parent


def make(url: str, revision: str) -> None:
    """Write the log of that revision, or of the last one before of which there is a file."""
    engine = sa.create_engine(database.normalize(url), poolclass=sa.NullPool)
    file = max(one for one in HERE.glob("revision-*.jsonl") if one.stem <= f"revision-{revision}")
    with engine.begin() as connection:
        alembic.command.upgrade(migrate.config(connection), revision)
        kept = sa.MetaData()
        kept.reflect(connection, only=["log_head", "log_batch", "log_event"])
        connection.execute(sa.delete(kept.tables["log_head"]))
        for line in file.read_text("utf-8").splitlines():
            row = json.loads(line)
            table = kept.tables[row.pop("table")]
            for name in row.keys() & {"chain", "root", "leaf"}:
                row[name] = bytes.fromhex(row[name])
            if "data" in row:
                row["data"] = row["data"].encode()
            connection.execute(sa.insert(table).values(row))
    engine.dispose()
