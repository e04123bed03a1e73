"""Owns what the CLI does on a database itself, without a controller. Everything heavy is imported late."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from smgate import client, clock as clocks
from smgate.cli import exit_codes, failures

if TYPE_CHECKING:
    from smgate.service import credentials


def _refusals() -> tuple[type[Any], ...]:
    """Errors of the log that say themselves what is refused, and the next step."""
    from smgate.log import archive, codec, formats
    from smgate.service import openings

    return (
        archive.ArchiveMissingError,
        archive.ArchiveBadError,
        openings.UnreadableOpeningError,
        formats.NotFinalizedError,
        codec.UnknownEventError,
    )


def _conflict(error: Any) -> failures.CliError:  # noqa: ANN401  one of `_refusals`
    return failures.CliError(
        error.sentence, code=error.code, exit_code=exit_codes.CONFLICT, hint=error.next_step
    )


@contextlib.contextmanager
def told(url: str) -> Iterator[None]:
    """Turn what a database can do to us into a sentence."""
    try:
        import sqlalchemy as sa

        from smgate.log import database, port
        from smgate.service import refusal

        refused = _refusals()
    except ModuleNotFoundError as error:
        raise failures.CliError(
            "This installation has no controller.",
            code="no_controller",
            cause=str(error),
            hint="Install smgate[controller], and smgate[postgres] for PostgreSQL.",
        ) from error
    try:
        database.normalize(url)
    except (ValueError, sa.exc.ArgumentError) as error:
        # The URL may hold a password, and so may the parser's own sentence about it.
        raise failures.usage(
            "This is no database URL that smgate knows.",
            cause=str(error) if "@" not in url else "",
            hint="sqlite:///PATH, sqlite:////ABSOLUTE/PATH or postgresql://...",
        ) from error
    try:
        yield
    except port.LogNotReadyError as error:
        raise failures.CliError(
            "The database is not ready.",
            code="not_ready",
            cause=str(error),
            hint="smgate db upgrade --database URL",
        ) from error
    except port.LogTooNewError as error:
        raise failures.CliError(
            error.sentence, code="database_too_new", hint=error.next_step
        ) from error
    except refused as error:
        raise _conflict(error) from error
    except port.LogUnavailableError as error:
        raise failures.CliError(
            "The database cannot be used.",
            code="database_unavailable",
            exit_code=exit_codes.UNREACHABLE,
            cause=f"{error} ({database.normalize(url).set(query={}).render_as_string()})",
            hint=error.next_step,
        ) from error
    except refusal.RefusedError as error:
        told_as = client.ApiError(
            status=error.status,
            code=error.code,
            message=error.message,
            next_step=error.next_step,
        )
        raise failures.refused(told_as) from error


def upgrade(url: str) -> str:
    """Bring the database to this version's shape; its revision."""
    with told(url):
        from smgate.log import open as log_open

        return log_open.upgrade(url)


def backup_of(url: str) -> str | None:
    """The copy an upgrade made beside an SQLite file."""
    with told(url):
        from smgate.log import migrate

        found = migrate.backup_of(url)
        return None if found is None else str(found)


def level(url: str) -> dict[str, Any]:
    """Which stored forms the log may hold, and what finalizing it would add."""
    with told(url):
        from smgate.log import migrate

        return dataclasses.asdict(migrate.level(url))


def finalize(url: str) -> dict[str, Any]:
    """Let this release write all it can; what was true before."""
    with told(url):
        from smgate.log import migrate

        return dataclasses.asdict(migrate.finalize(url))


def check(url: str) -> list[dict[str, Any]]:
    """What keeps this version from using the database."""
    with told(url):
        from smgate.log import open as log_open

        return [dataclasses.asdict(one) for one in log_open.check(url)]


def check_fit(url: str) -> None:
    """Refuse to write into a database with which something is wrong: it would be worse afterwards."""
    # One in another mode of the journal is a copy that was just put back.
    problems = [one for one in check(url) if one["code"] != "journal_mode"]
    if problems:
        first = problems[0]
        raise failures.CliError(
            str(first["sentence"]),
            code=str(first["code"]),
            exit_code=exit_codes.UNREACHABLE
            if first["code"] == "unavailable"
            else exit_codes.ERROR,
            hint=str(first["next_step"]),
        )


def redact(
    url: str, position: int, *, clock: clocks.Clock, by: str, reason: str, dry_run: bool
) -> dict[str, Any]:
    """Erase the payload of one fact, or say what would be erased."""
    with told(url):
        from smgate.log import open as log_open
        from smgate.service import redact as redacting

        check_fit(url)
        store = log_open.open_sql_store(url, clock_us=clock.now_us)
        try:
            return redacting.redact(
                store, position, by=by, reason=reason, at_us=clock.now_us(), dry_run=dry_run
            )
        finally:
            store.close()


def restore_begin(url: str, *, clock: clocks.Clock, reason: str) -> dict[str, Any]:
    """Say that the database was restored from a backup."""
    with told(url):
        from smgate.log import open as log_open
        from smgate.service import restore

        check_fit(url)
        store = log_open.open_sql_store(url, clock_us=clock.now_us)
        try:
            incarnation = restore.begin(store, reason=reason, at_us=clock.now_us())
            return {"incarnation": incarnation, "position": store.head().position}
        finally:
            store.close()


@contextlib.contextmanager
def tokens(url: str, *, clock: clocks.Clock) -> Iterator[credentials.Credentials]:
    """The table of tokens of a database."""
    with told(url):
        from smgate.log import database
        from smgate.service import credentials

        opened = database.connect(url)
        try:
            yield credentials.Credentials(opened, clock=clock)
        finally:
            opened.close()
