"""`smgate log archive`: the beginning of the log goes to files, and the log begins behind it."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from smgate.cli import exit_codes, offline_archive, output, server, session as sessions, verbs


def register(noun: typer.Typer) -> None:
    """Add the verb to its noun."""

    @verbs.does(
        noun,
        "archive",
        remote=False,
        examples=[
            "smgate log archive --to /srv/smgate-archive --keep-days 90 --dry-run",
            "smgate log archive --to /srv/smgate-archive --keep-days 90",
        ],
    )
    def archive(
        session: sessions.Session,
        to: Annotated[pathlib.Path, typer.Option("--to", help="The folder the files go to.")],
        keep_days: Annotated[
            float, typer.Option("--keep-days", help="What was recorded within so many days stays.")
        ] = 90,
        before: Annotated[
            int | None, typer.Option("--before", min=1, help="Nothing from this position on goes.")
        ] = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")
        ] = False,
        database: Annotated[
            str | None,
            typer.Option(
                "--database", help="sqlite:///PATH or postgresql://... Else SMGATE_DATABASE_URL."
            ),
        ] = None,
    ) -> int:
        """Put what is old into files, checked by their hash, and take it out of the database.

        Controllers go on meanwhile. What was folded of it stays in the log, so nothing is decided
        otherwise without the files; they are needed for what is asked about that time. Stopped anywhere,
        the same command goes on.
        """
        url = server.load(session, database_url=database).database_url
        body = offline_archive.archive(
            url, clock=session.clock, to=to, keep_days=keep_days, before=before, dry_run=dry_run
        )
        output.single(
            session.console, body, name=str(body["floor"]), style=session.style, footer=""
        )
        return exit_codes.OK
