"""`smgate db`: the database's shape, and what follows when a backup was put back."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate.cli import (
    agreeing,
    asks,
    exit_codes,
    failures,
    offline,
    output,
    reach,
    server,
    session as sessions,
    verbs,
)

NOUN: Final = verbs.noun("db", "The database itself: its shape, and after a backup was put back.")
Url = Annotated[
    str | None,
    typer.Option("--database", help="sqlite:///PATH or postgresql://... Else SMGATE_DATABASE_URL."),
]


def _url(session: sessions.Session, given: str | None) -> str:
    return server.load(session, database_url=given).database_url


@verbs.does(
    NOUN,
    "upgrade",
    remote=False,
    examples=["smgate db upgrade --database sqlite:////var/lib/smgate/smgate.db"],
)
def upgrade(session: sessions.Session, database: Url = None) -> int:
    """Bring the database to the newest revision. Safe to run twice, and from several machines.

    An SQLite file is copied first. The release before can go on with the database until `smgate db
    finalize`.
    """
    revision = offline.upgrade(_url(session, database))
    told = {"revision": revision, "backup": offline.backup_of(_url(session, database))}
    output.single(session.console, told, name=revision, style=session.style, footer="")
    return exit_codes.OK


@verbs.does(
    NOUN,
    "check",
    remote=False,
    examples=["smgate db check --database postgresql://smgate@db/smgate"],
)
def check(session: sessions.Session, database: Url = None) -> int:
    """Say what keeps this version from using the database. Changes nothing."""
    url = _url(session, database)
    problems = offline.check(url)
    level = None if problems else offline.level(url)
    table = output.Table(
        noun="problems",
        name="code",
        columns=(
            output.Column("CODE", "code"),
            output.Column("PROBLEM", "sentence"),
            output.Column("NEXT STEP", "next_step"),
        ),
    )
    body = {"apiVersion": "v1", "items": problems, "level": level}
    output.listing(session.console, body, table, session.style, footer="")
    if problems:
        raise failures.CliError(
            f"The database has {len(problems)} problem(s).",
            code=str(problems[0]["code"]),
            hint=str(problems[0]["next_step"]),
        )
    if level is not None:
        _say_level(session, level)
    return exit_codes.OK


def _say_level(session: sessions.Session, told: output.Row) -> None:
    what = ", ".join(told["finalizing_enables"])
    session.console.note(
        f"The log is at level {told['level']}; smgate db finalize would enable {what}, and end that "
        "the release before can use it."
        if what
        else f"The log is at level {told['level']}, the newest of this release."
    )


@verbs.does(
    NOUN,
    "finalize",
    remote=False,
    examples=["smgate db finalize --database sqlite:////var/lib/smgate/smgate.db"],
)
def finalize(
    session: sessions.Session,
    database: Url = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Let this release write into the log all that it can.

    Until then it writes only what the release before can read, so that one can be put back. Give
    this once you will not go back; a controller that runs writes more after its next start.
    """
    url = _url(session, database)
    level = offline.level(url)
    if level["level"] < level["newest"] and not yes:
        agreeing.agree(
            session,
            f"The log goes from level {level['level']} to {level['newest']}: the release before can "
            "then never use it again.",
            hint="Look with smgate db check, then give --yes.",
        )
    told = offline.finalize(url)
    now = {"level_before": told["level"], "level": told["newest"]}
    enabled = {"enabled": list(told["finalizing_enables"])}
    output.single(
        session.console, now | enabled, name=str(now["level"]), style=session.style, footer=""
    )
    return exit_codes.OK


@verbs.does(
    NOUN,
    "restore-begin",
    remote=False,
    examples=["smgate db restore-begin --reason 'the host burned; backup of 02:00'"],
)
def restore_begin(
    session: sessions.Session,
    reason: Annotated[str, typer.Option("--reason", help="What happened, and which backup it is.")],
    database: Url = None,
) -> int:
    """Say that this database is a backup put back, before the controller starts on it.

    The controller must be stopped. Agents send again what the log lacks and say what they were told;
    nothing widens until `smgate db restore-finish`.
    """
    body = offline.restore_begin(_url(session, database), clock=session.clock, reason=reason)
    output.single(
        session.console, body, name=str(body["incarnation"]), style=session.style, footer=""
    )
    session.console.note("Start the controller; then smgate wait ls, and smgate db restore-finish.")
    return exit_codes.OK


@verbs.changes(
    NOUN,
    "restore-finish",
    "db_restore_finish",
    asks_first=True,
    examples=["smgate db restore-finish --reason 'all 3000 nodes are back'"],
)
def restore_finish() -> asks.Change:
    """Let widening go on after a restore; a controller is asked.

    Units that had been told something more careful than the restored log says keep that: they are
    listed, and wait for `smgate change accept`.
    """
    return asks.Change(
        fields={},
        summary="The restore is finished: widening goes on.",
        consequence=reach.of_restore(),
    )
