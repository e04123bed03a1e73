"""`smgate issue`: known issues, which stop the builds they match."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import asks, output, reach, session as sessions, suggest, verbs

NOUN: Final = verbs.noun("issue", "Known issues: reports that stop the builds they match.")
TABLE: Final = output.Table(
    noun="known issues",
    name="id",
    columns=(
        output.Column("ISSUE", "id"),
        output.Column("SEVERITY", "severity"),
        output.Column("MATCH", "match"),
        output.Column("TITLE", "title"),
        output.Column("URL", "url", wide=True),
    ),
)


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate issue ls", "smgate issue ls -o wide"])
def ls() -> asks.Listing:
    """List the known issues."""
    return asks.Listing(path=client.path("issues"), table=TABLE)


@verbs.changes(
    NOUN,
    "publish",
    "issue_publish",
    asks_first=True,
    alone=True,
    examples=["smgate issue publish -f flashinfer-4123.yaml --reason 'upstream report'"],
)
def publish(
    session: sessions.Session,
    file: Annotated[str, typer.Option("--file", "-f", help="YAML or JSON, - for standard input.")],
) -> asks.Change:
    """Publish or replace a known issue: what it matches gets the safe value, if it blocks."""
    from smgate.cli import files
    from smgate.domain import policy

    issue = files.load(file, policy.KnownIssue, asked=session.console.asked, ignored=files.ADDED)
    blocks = issue.get("severity", "block") == "block"
    follows = "builds it matches get the safe value" if blocks else "it is listed and stops nothing"
    return asks.Change(
        fields={"issue": issue},
        summary=f"Issue {issue['id']} is published: {follows}.",
        consequence=reach.of_all(),
    )


@verbs.changes(
    NOUN,
    "withdraw",
    "issue_withdraw",
    asks_first=True,
    alone=True,
    examples=["smgate issue withdraw flashinfer-4123 --reason 'it was another cubin'"],
)
def withdraw(
    issue: Annotated[str, typer.Argument(help="A known issue.", autocompletion=suggest.issues)],
) -> asks.Change:
    """Say that a known issue no longer holds: grants that it suspended count again."""
    return asks.Change(
        fields={"issue_id": issue},
        summary=f"Issue {issue} is withdrawn: grants that it suspended count again.",
        consequence=reach.of_all(),
    )
