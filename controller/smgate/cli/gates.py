"""`smgate gate`: what is being enabled, its modes, and the kill switch."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from smgate import client
from smgate.cli import asks, output, reach, session as sessions, suggest, verbs

NOUN: Final = verbs.noun("gate", "What is being enabled, where, and the kill switch.")
TABLE: Final = output.Table(
    noun="gates",
    name="id",
    columns=(
        output.Column("GATE", "id"),
        output.Column("TARGET", "target"),
        output.Column("BASELINE", "baseline_sms"),
        output.Column("CANDIDATE", "candidate_sms"),
        output.Column("MODES", "modes"),
        output.Column("DISABLED", "disabled_sms"),
        output.Column("GRADUATED", "graduated_sms", wide=True),
        output.Column("ARCHITECTURE", "architecture", wide=True),
        output.Column("FORMAT", "weight_format", wide=True),
        output.Column("CHECKS", "required_checks", wide=True),
    ),
)
ADDED: Final = frozenset({"modes", "disabled_sms", "graduated_sms"})
"""What `gate show` adds to a gate: other commands change it."""
GateId = Annotated[str, typer.Argument(help="A gate.", autocompletion=suggest.gates)]
Sms = Annotated[
    list[str] | None,
    typer.Option("--sm", help="An SM such as 10.7, once for each. None: all candidates."),
]


@verbs.reads(NOUN, "show", watch=True, examples=["smgate gate show", "smgate gate show -o yaml"])
def show(
    gate: Annotated[
        str | None, typer.Argument(help="Only this gate.", autocompletion=suggest.gates)
    ] = None,
) -> asks.Listing:
    """Show the gates, the mode of each SM, and what is disabled."""
    return asks.Listing(path=client.path("gates"), table=TABLE, only=gate)


@verbs.changes(
    NOUN,
    "publish",
    "gate_publish",
    asks_first=True,
    examples=["smgate gate publish -f gate.yaml --reason 'add SM107 to the second model'"],
)
def publish(
    session: sessions.Session,
    file: Annotated[str, typer.Option("--file", "-f", help="YAML or JSON, - for standard input.")],
) -> asks.Change:
    """Publish or replace a gate."""
    from smgate.cli import files
    from smgate.domain import policy

    gate = files.load(file, policy.Gate, asked=session.console.asked, ignored=files.ADDED | ADDED)
    return asks.Change(
        fields={"gate": gate},
        summary=f"Gate {gate['id']} is published.",
        consequence=reach.of_gate(gate["id"], gate["candidate_sms"]),
    )


@verbs.changes(
    NOUN,
    "mode",
    "gate_mode",
    asks_first=True,
    alone=True,
    examples=["smgate gate mode kimi-k3-mxfp4 10.7 enforce --reason 'observed for two weeks'"],
)
def mode(
    gate: GateId,
    sm: Annotated[str, typer.Argument(help="An SM such as 10.7.")],
    mode: Annotated[Literal["observe", "enforce"], typer.Argument(help="What to do there.")],
) -> asks.Change:
    """Observe (decide, tell, change nothing) or enforce, for one SM."""
    effect = (
        "what is decided there is done at the next start"
        if mode == "enforce"
        else "nothing is changed there any more"
    )
    return asks.Change(
        fields={"gate": gate, "sm": sm, "mode": mode},
        summary=f"Gate {gate}, SM {sm}: {mode}; {effect}.",
        consequence=reach.of_gate(gate, [sm]),
    )


@verbs.changes(
    NOUN,
    "disable",
    "gate_disable",
    asks_first=True,
    examples=["smgate gate disable kimi-k3-mxfp4 --sm 10.7 --reason INC-4411 --yes"],
)
def disable(gate: GateId, sm: Sms = None) -> asks.Change:
    """The kill switch: the safe value at every next start there."""
    where = f"SM {', '.join(sm)}" if sm else "all candidate SMs"
    return asks.Change(
        fields={"gate": gate, "sms": list(sm or ())},
        summary=f"Gate {gate} is disabled on {where}: the safe value at every next start.",
        consequence=reach.of_gate(gate, sm or ()),
    )


@verbs.changes(
    NOUN,
    "enable",
    "gate_enable",
    asks_first=True,
    alone=True,
    examples=["smgate gate enable kimi-k3-mxfp4 --sm 10.7 --reason 'INC-4411 is understood'"],
)
def enable(gate: GateId, sm: Sms = None) -> asks.Change:
    """Lift the kill switch: grants that it suspended count again."""
    where = f"SM {', '.join(sm)}" if sm else "all candidate SMs"
    return asks.Change(
        fields={"gate": gate, "sms": list(sm or ())},
        summary=f"Gate {gate} is enabled on {where}: suspended grants count again.",
        consequence=reach.of_gate(gate, sm or ()),
    )


@verbs.changes(
    NOUN,
    "graduate",
    "gate_graduate",
    asks_first=True,
    examples=[
        "smgate gate graduate kimi-k3-mxfp4 10.7 --reason 'a quarter without a bad sign' --dry-run"
    ],
)
def graduate(
    gate: GateId, sm: Annotated[str, typer.Argument(help="A candidate SM such as 10.7.")]
) -> asks.Change:
    """End the gate for an SM: it is decided as a baseline from now on. Grants stay.

    Refused until a rollout has completed there and nothing is suspect, failed or halted. Kill switch,
    pins, known issues and failed builds hold on. Back: publish the gate with the SM as a candidate.
    """
    return asks.Change(
        fields={"gate": gate, "sm": sm},
        summary=f"Gate {gate} ends for SM {sm}: it is decided as a baseline from now on.",
        consequence=reach.of_gate(gate, [sm]),
        typed_name=gate,
    )
