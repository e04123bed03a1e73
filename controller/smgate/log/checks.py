"""Owns saying what keeps this version from using a database as it is. Changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import alembic.autogenerate
import alembic.migration
import sqlalchemy as sa

from smgate.log import database, migrate, port, server, sql, tables

RESTORE: Final = "Restore the database from a backup; `smgate log verify` says more."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why this version cannot use the database as it is."""

    code: str
    sentence: str
    next_step: str


def check(url: str) -> list[Problem]:
    """What is wrong with the database; empty if this version can use it. Changes nothing."""
    opened = database.connect(url, read_only=True)
    try:
        with opened.reading() as connection:
            return _problems(connection)
    except (server.UnfitError, migrate.RevisionsError) as error:
        return [Problem(code=error.reason, sentence=error.detail, next_step=error.next_step)]
    except port.LogUnavailableError as error:
        return [
            Problem(
                code="unavailable",
                sentence=f"The database does not answer ({error.reason}): {error.detail}",
                next_step=error.next_step,
            )
        ]
    finally:
        opened.close()


def _problems(connection: sa.Connection) -> list[Problem]:
    server.check(connection)
    context = alembic.migration.MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": False}
    )
    current = migrate.revision_of(connection)
    problem = revision_problem(connection, current)
    if problem is not None:
        return [problem]
    if current != migrate.newest():
        # Its tables have what this version does not know of.
        return list(_row_problems(connection))
    return _shape_problems(connection, context)


def revision_problem(connection: sa.Connection, current: str | None) -> Problem | None:
    """What is wrong with a database of this revision; None if this version can use it.

    One that a newer version migrated and did not finalize can be used, also while it runs.
    """
    if current == migrate.newest():
        return None
    if current is None and sa.inspect(connection).has_table(tables.LOG_HEAD.name):
        sentence = "The database has tables of an event log, and does not say of which revision."
        return Problem(code="revision_missing", sentence=sentence, next_step=RESTORE)
    if current is None:
        sentence, step = "The database has no event log.", "Run `smgate db upgrade`."
        return Problem(code="not_migrated", sentence=sentence, next_step=step)
    if current in migrate.known():
        sentence = f"The database is at revision {current}; this version needs {migrate.newest()}."
        return Problem(code="behind", sentence=sentence, next_step="Run `smgate db upgrade`.")
    try:
        migrate.check_readable(connection, current)
    except port.LogTooNewError as new:
        return Problem(code="too_new", sentence=new.sentence, next_step=new.next_step)
    return None


def _shape_problems(
    connection: sa.Connection, context: alembic.migration.MigrationContext
) -> list[Problem]:
    found = [
        Problem(
            code="tables_differ",
            sentence=f"The tables are not as this version made them: {difference!r}.",
            next_step="Find out who changed the schema; restore it from a backup.",
        )
        for difference in (
            *alembic.autogenerate.compare_metadata(context, tables.METADATA),
            *_constraints_missing(connection),
        )
    ]
    if not found:
        found += _row_problems(connection)
    if connection.dialect.name == "sqlite":
        journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        if journal != "wal":
            found.append(
                Problem(
                    code="journal_mode",
                    sentence=f"The file's journal mode is {journal}, not wal: readers would wait.",
                    next_step="Run `smgate db upgrade`.",
                )
            )
    return found


def _constraints_missing(connection: sa.Connection) -> Iterator[str]:
    """Primary keys and checks that are gone: Alembic does not compare those."""
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names())
    for name, table in tables.METADATA.tables.items():
        if name not in there:
            continue  # Which Alembic does compare.
        key = [column.name for column in table.primary_key.columns]
        if inspector.get_pk_constraint(name)["constrained_columns"] != key:
            yield f"the primary key of {name} is not {', '.join(key)}"
        wanted = {str(one.name) for one in table.constraints if isinstance(one, sa.CheckConstraint)}
        found = {one["name"] for one in inspector.get_check_constraints(name)}
        for missing in sorted(wanted - found):
            yield f"the constraint {missing} of {name} is missing"


def _row_problems(connection: sa.Connection) -> Iterator[Problem]:
    """What is wrong with the rows that every append needs. The log itself is for `log verify`."""
    head = connection.execute(sql.HEAD).first()
    if head is None:
        yield Problem(
            code="head_missing",
            sentence="The head row of the log is missing.",
            next_step=RESTORE,
        )
    elif not _is_end(connection, sql.head_from(*head)):
        yield Problem(
            code="head_differs",
            sentence=f"The head row is at position {head.position}, which is not where the log ends.",
            next_step=RESTORE,
        )
    try:
        migrate.level_of(connection)
    except port.LogTooNewError as new:
        yield Problem(code="too_new", sentence=new.sentence, next_step=new.next_step)
    except port.LogNotReadyError as error:
        yield Problem(code="level_missing", sentence=error.detail, next_step=RESTORE)


def _is_end(connection: sa.Connection, head: port.Head) -> bool:
    last = connection.execute(sql.LAST_BATCH).first()
    event = connection.execute(sa.select(sa.func.max(tables.LOG_EVENT.c.position))).scalar()
    ends = {None} if head.position == head.floor_position else set()  # All of it may be archived.
    batch_end = None if last is None else (last.first_position + last.count - 1, bytes(last.chain))
    return batch_end in ends | {(head.position, head.chain)} and event in ends | {head.position}
