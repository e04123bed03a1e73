"""Owns whether this process can do its work: the database as it should be, and somebody leads."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from smgate.log import open as log_open, port, tables
from smgate.service import leader, service as services

_WANT_EVENTS: Final = sa.text("LOCK TABLE log_event IN ROW EXCLUSIVE MODE")  # As an append does.
_SHAPE: Final = sa.text("SELECT version_num FROM alembic_version")


def problems(service: services.Service) -> list[dict[str, Any]]:
    """What keeps it from working, in sentences; empty if nothing does."""
    try:
        with service.store.database.statement() as connection:
            shape = log_open.revision_problem(connection, connection.execute(_SHAPE).scalar())
            expires_at_us = connection.execute(
                sa.select(tables.LEASE.c.expires_at_us).where(tables.LEASE.c.name == leader.LEASE)
            ).scalar()
    except port.LogError as error:
        return [{"code": error.code, "sentence": str(error)}]
    found = []
    if shape is not None:
        found.append({"code": "schema", "sentence": f"{shape.sentence} {shape.next_step}"})
    unwritten = _unwritten(service)
    if unwritten is not None:
        found.append(unwritten)
    trouble = service.leader.status.trouble
    if trouble is not None:
        found.append({"code": "leader_failed", "sentence": trouble})
    if expires_at_us is None or service.contacts.now_us() >= int(expires_at_us):
        sentence = "Nobody leads: nothing is decided until a process can take the lease."
        found.append({"code": "no_leader", "sentence": sentence})
    return found


def _unwritten(service: services.Service) -> dict[str, Any] | None:
    """What keeps appends out, if one failed since the last that did not: it is tried without one.

    Nobody might ask this process again while it says that it is not ready.
    """
    if service.appender.trouble is None:
        return None
    try:
        with service.store.database.writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(_WANT_EVENTS)
            connection.execute(sa.select(tables.LOG_EVENT.c.position).limit(0))
            connection.execute(sa.update(tables.LOG_HEAD).values(holder=tables.LOG_HEAD.c.holder))
    except port.LogUnavailableError as error:
        return {"code": error.code, "sentence": f"{error}. {error.next_step}"}
    except port.LogNotReadyError as error:
        return {"code": error.code, "sentence": str(error)}
    service.appender.trouble = None
    return None
