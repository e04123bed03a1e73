"""Owns what a PostgreSQL server must be for a log to be kept in it."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from smgate.log import port

POSTGRES_MIN: Final = 130_000  # As server_version_num; the oldest that is still tested by anybody.


class UnfitError(port.LogUnavailableError):
    """No log can be kept there."""


def check(connection: sa.Connection) -> None:
    """Refuse a server, or a database of it, in which no log can be kept. SQLite always can.

    Raises:
        UnfitError: `server_too_old`, `encoding`.
    """
    if connection.dialect.name != "postgresql":
        return
    version = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
    if version < POSTGRES_MIN:
        sentence = f"PostgreSQL {version // 10_000} is too old; 13 is the oldest supported."
        raise UnfitError("server_too_old", sentence)
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        sentence = f"The database's encoding is {encoding}; records need UTF8."
        raise UnfitError("encoding", sentence)
