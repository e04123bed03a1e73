"""`smgate token`: who may do what. A token is printed once, when it is made."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import typer

from smgate import client
from smgate.cli import durations, exit_codes, failures, offline, output, session as sessions, verbs

NOUN: Final = verbs.noun("token", "Tokens of operators, and join tokens of nodes.")
JOIN_TTL: Final = "24h"
TABLE: Final = output.Table(
    noun="tokens",
    name="id",
    columns=(
        output.Column("TOKEN", "id"),
        output.Column("KIND", "kind"),
        output.Column("NAME", "subject"),
        output.Column("ROLE", "role"),
        output.Column("CREATED", "created_at"),
        output.Column("EXPIRES", "expires_at"),
        output.Column("REVOKED", "revoked_at"),
    ),
)
Database = Annotated[
    str | None,
    typer.Option(
        "--database", help="Write into this database itself: the first token of a new log."
    ),
]


@verbs.does(
    NOUN,
    "issue",
    examples=[
        "smgate token issue --role approver --name alice > alice.token",
        "smgate token issue --role admin --name root --database sqlite:///smgate.db",
        "smgate token issue --join --name rack-12 --ttl 2h",
    ],
)
def issue(
    session: sessions.Session,
    name: Annotated[
        str | None, typer.Option("--name", help="Whose it is; rulings carry this name.")
    ] = None,
    role: Annotated[
        Literal["viewer", "operator", "approver", "admin"] | None,
        typer.Option("--role", help="Each role may do what those before it may."),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="For nodes to enrol with, instead of a role.")
    ] = False,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", help="How long it lives, such as 90d, 24h, 30m. Join tokens: 24h."),
    ] = None,
    database: Database = None,
) -> int:
    """Make a token and print it, once: only its hash is kept."""
    if join == (role is not None):
        raise failures.usage("Give either --role or --join.")
    if name is None and not join:
        raise failures.usage("--name is missing.", hint="Two people must not share a token.")
    ttl_s = durations.seconds(ttl or (JOIN_TTL if join else None), "--ttl")
    kind: Literal["join", "operator"] = "join" if join else "operator"
    if database is None:
        body = {"kind": kind, "subject": name or "join", "role": role, "ttl_s": ttl_s}
        given = {key: value for key, value in body.items() if value is not None}
        made = session.client.post(client.path("tokens"), given).body
    else:
        from smgate.service import credentials

        with offline.tokens(database, clock=session.clock) as table:
            issued = table.issue(kind=kind, subject=name or "join", role=role, ttl_s=ttl_s)
        made = {**credentials.row(issued.credential), "token": issued.token}
    if session.style.human:
        session.console.data(str(made["token"]))
        session.console.note("Printed once; only its hash is kept. Keep it in a file of mode 600.")
    else:
        output.single(
            session.console, made, name=str(made.get("id")), style=session.style, footer=""
        )
    return exit_codes.OK


@verbs.does(NOUN, "revoke", examples=["smgate token revoke 5d1c3f0a9b7e4821"])
def revoke(
    session: sessions.Session,
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="Its id from `token ls`, never the token itself.")
    ],
    database: Database = None,
) -> int:
    """End a token, now."""
    if token_id.startswith("smg") and "_" in token_id:
        raise failures.usage(
            "That is a token, not an id.",
            hint="It is now in your shell's history: find its id with `smgate token ls`.",
        )
    if database is None:
        ended = bool(session.client.delete(client.path("tokens", token_id)).body.get("changed"))
    else:
        with offline.tokens(database, clock=session.clock) as table:
            ended = table.revoke(token_id)
    session.console.note(f"Token {token_id} {'is revoked' if ended else 'had ended already'}.")
    return exit_codes.OK


@verbs.does(NOUN, "ls", examples=["smgate token ls", "smgate token ls -o json"])
def ls(session: sessions.Session, database: Database = None) -> int:
    """List the tokens: whose they are and when they end, never themselves."""
    body: dict[str, Any]
    footer = ""
    if database is None:
        answer = session.client.get(client.path("tokens"))
        body, footer = answer.body, output.according_to(answer.body, answer.date)
    else:
        from smgate.service import credentials

        with offline.tokens(database, clock=session.clock) as table:
            rows = [credentials.row(one) for one in table.list()]
        body = {"apiVersion": "v1", "items": rows}
    output.listing(session.console, body, TABLE, session.style, footer=footer)
    return exit_codes.OK
