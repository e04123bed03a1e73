"""`smgate policy`: the numbers the controller decides with."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import asks, exit_codes, output, reach, session as sessions, verbs

NOUN: Final = verbs.noun("policy", "The numbers the controller decides with.")


@verbs.reads(
    NOUN, "show", examples=["smgate policy show", "smgate policy show -o yaml > policy.yaml"]
)
def show() -> asks.Item:
    """Show the policy in force."""
    return asks.Item(path=client.path("policy"), name="policy")


@verbs.changes(
    NOUN,
    "publish",
    "policy_publish",
    asks_first=True,
    alone=True,
    examples=["smgate policy publish -f policy.yaml --reason 'five GPU sets from now on'"],
)
def publish(
    session: sessions.Session,
    file: Annotated[str, typer.Option("--file", "-f", help="YAML or JSON, - for standard input.")],
) -> asks.Change:
    """Replace the policy. A key that is not given has its default, not its earlier value."""
    from smgate.cli import files
    from smgate.domain import policy as policies

    policy = files.load(file, policies.Policy, asked=session.console.asked, ignored=files.ADDED)
    return asks.Change(
        fields={"policy": policy},
        summary="The policy is replaced.",
        consequence=reach.of_policy(policy),
    )


@verbs.does(
    NOUN,
    "whatif",
    examples=[
        "smgate policy whatif policy.yaml --since 2027-03-01T00:00:00Z",
        "smgate policy whatif policy.yaml --since 81244 -o json",
    ],
)
def whatif(
    session: sessions.Session,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML or JSON, - for standard input.")
    ],
    since: Annotated[str, typer.Option("--since", help="A log position or an ISO time.")],
) -> int:
    """Say what another policy would have decided on the real log since then. Changes nothing."""
    from smgate.cli import files, whatif_lines
    from smgate.domain import policy as policies

    policy = files.load(file, policies.Policy, asked=session.console.asked, ignored=files.ADDED)
    answer = session.client.post(
        client.path("policy", "whatif"), {"policy": policy, "since": since}
    )
    output.single(
        session.console,
        answer.body,
        name="policy",
        style=session.style,
        footer=output.according_to(answer.body, answer.date),
        lines=whatif_lines.lines,
    )
    return exit_codes.OK
