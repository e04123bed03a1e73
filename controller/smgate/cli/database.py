"""`smgate db`: bring a database to this version's shape, or see what keeps it from that."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate.cli import exit_codes, failures, offline, output, server, session as sessions, verbs

NOUN: Final = verbs.noun("db", "The database itself; no controller is asked.")
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
    """Bring the database to the newest revision. Safe to run twice, and from several machines."""
    revision = offline.upgrade(_url(session, database))
    output.single(
        session.console, {"revision": revision}, name=revision, style=session.style, footer=""
    )
    return exit_codes.OK


@verbs.does(
    NOUN,
    "check",
    remote=False,
    examples=["smgate db check --database postgresql://smgate@db/smgate"],
)
def check(session: sessions.Session, database: Url = None) -> int:
    """Say what keeps this version from using the database. Changes nothing."""
    problems = offline.check(_url(session, database))
    table = output.Table(
        noun="problems",
        name="code",
        columns=(
            output.Column("CODE", "code"),
            output.Column("PROBLEM", "sentence"),
            output.Column("NEXT STEP", "next_step"),
        ),
    )
    body = {"apiVersion": "v1", "items": problems}
    output.listing(session.console, body, table, session.style, footer="")
    if problems:
        raise failures.CliError(
            f"The database has {len(problems)} problem(s).",
            code=str(problems[0]["code"]),
            hint=str(problems[0]["next_step"]),
        )
    return exit_codes.OK
