"""`smgate rollout`: who gets the target next, in waves."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import (
    asks,
    exit_codes,
    options,
    output,
    reach,
    rollout_lines,
    session as sessions,
    suggest,
    verbs,
)

NOUN: Final = verbs.noun("rollout", "Waves of units that get the target.")


def _waves(row: output.Row) -> list[output.Row]:
    waves = row.get("waves")
    return [one for one in waves if isinstance(one, dict)] if isinstance(waves, list) else []


def _wave(row: output.Row) -> str:
    return f"{len(_waves(row))}/{output.text_of(row.get('waves_planned'))}"


def _verdict(row: output.Row) -> object:
    waves = _waves(row)
    return waves[-1].get("verdict") if waves else None


def _members(row: output.Row) -> str:
    members = [one for wave in _waves(row) for one in wave.get("members") or ()]
    good = sum(1 for one in members if one.get("good"))
    bad = sum(1 for one in members if one.get("bad"))
    return f"{len(members)} ({good} good, {bad} bad)"


TABLE: Final = output.Table(
    noun="rollouts",
    name="id",
    columns=(
        output.Column("ROLLOUT", "id"),
        output.Column("PHASE", "phase"),
        output.Column("GATE", "gate"),
        output.Column("SM", "sm"),
        output.Column("WAVE", _wave),
        output.Column("VERDICT", _verdict),
        output.Column("UNITS", _members),
        output.Column("IN FLIGHT", "in_flight"),
        output.Column("HALTED", "halted_code"),
        output.Column("AUTHOR", "author", wide=True),
        output.Column("APPROVED BY", "approvers", wide=True),
    ),
)
RolloutId = Annotated[str, typer.Argument(help="A rollout.", autocompletion=suggest.rollouts)]


def ended(row: output.Row) -> int | None:
    """The exit code of a rollout that has ended; None while it has not."""
    return {
        "completed": exit_codes.OK,
        "halted": exit_codes.ENDED_BADLY,
        "aborted": exit_codes.ENDED_BADLY,
    }.get(str(output.object_of(row).get("phase")))


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate rollout ls", "smgate rollout ls -o json"])
def ls() -> asks.Listing:
    """List the rollouts."""
    return asks.Listing(path=client.path("rollouts"), table=TABLE)


@verbs.reads(
    NOUN,
    "get",
    watch=True,
    examples=["smgate rollout get k3-107-a", "smgate rollout get k3-107-a --watch --timeout 3600"],
)
def get(rollout: RolloutId) -> asks.Item:
    """Show one rollout. With --watch until it ends: 0 if completed, 6 if halted or aborted."""
    return asks.Item(
        path=client.path("rollouts", rollout),
        name=rollout,
        kind="rollout",
        table=TABLE,
        ended=ended,
        lines=rollout_lines.get_lines,
    )


@verbs.reads(
    NOUN,
    "why",
    examples=["smgate rollout why k3-107-a", "smgate rollout why k3-107-a --at 81244"],
)
def why(rollout: RolloutId, at: options.At = None) -> asks.Item:
    """Say what a rollout waits for, whose move it is, since when and until when, unit by unit."""
    return asks.Item(
        path=client.path("rollouts", rollout, "why"),
        name=rollout,
        kind="rollout",
        parameters={"at": at},
        lines=rollout_lines.why_lines,
    )


@verbs.changes(
    NOUN,
    "propose",
    "rollout_propose",
    examples=["smgate rollout propose -f plan.yaml --reason 'SM107, first wave of three'"],
)
def propose(
    session: sessions.Session,
    file: Annotated[str, typer.Option("--file", "-f", help="YAML or JSON, - for standard input.")],
) -> asks.Change:
    """Put a plan forward. Another person approves it."""
    from smgate.cli import files
    from smgate.domain import policy

    plan = files.load(file, policy.RolloutPlan, asked=session.console.asked)
    return asks.Change(fields={"plan": plan}, summary=f"Rollout {plan['id']} is proposed.")


PlanFile = Annotated[
    str, typer.Argument(metavar="FILE", help="YAML or JSON, - for standard input.")
]


@verbs.does(
    NOUN,
    "plan",
    examples=["smgate rollout plan plan.yaml", "smgate rollout plan plan.yaml -o json"],
)
def plan(session: sessions.Session, file: PlanFile) -> int:
    """Say what a plan would do if it were proposed now: its waves, their cost, what blocks whom."""
    from smgate.cli import files, plan_lines
    from smgate.domain import policy

    given = files.load(file, policy.RolloutPlan, asked=session.console.asked)
    answer = session.client.post(client.path("rollouts", "plan"), {"plan": given})
    output.single(
        session.console,
        answer.body,
        name=str(given["id"]),
        style=session.style,
        footer=output.according_to(answer.body, answer.date),
        lines=plan_lines.lines,
    )
    return exit_codes.OK


@verbs.does(
    NOUN,
    "diff",
    examples=[
        "smgate rollout diff k3-107-a k3-107-b",
        "smgate rollout diff k3-107-a plan.yaml -o json",
    ],
)
def diff(
    session: sessions.Session,
    rollout: RolloutId,
    other: Annotated[str, typer.Argument(metavar="ROLLOUT|FILE", help="Another, or a plan file.")],
) -> int:
    """A rollout beside another or a plan: whom each takes when, what differs, what it costs."""
    from pathlib import Path

    from smgate.cli import files, plan_lines
    from smgate.domain import policy

    asked: dict[str, object] = {"before": rollout}
    if (
        other == files.STANDARD_INPUT
        or Path(other).suffix in files.SUFFIXES
        or Path(other).is_file()
    ):
        asked["plan"] = files.load(other, policy.RolloutPlan, asked=session.console.asked)
    else:
        asked["after"] = other
    answer = session.client.post(client.path("rollouts", "diff"), asked)
    output.single(
        session.console,
        answer.body,
        name=f"{rollout} {other}",
        style=session.style,
        footer=output.according_to(answer.body, answer.date),
        lines=plan_lines.diff_lines,
    )
    return exit_codes.OK


@verbs.does(NOUN, "lint", remote=False, examples=["smgate rollout lint plan.yaml"])
def lint(session: sessions.Session, file: PlanFile) -> int:
    """Check a plan without a controller: what is wrong with it (2), and what is odd about it."""
    import dataclasses

    import msgspec

    from smgate.cli import failures, files, plan_lines
    from smgate.domain import errors, plan_check, plan_lint, policy

    given = msgspec.convert(
        files.load(file, policy.RolloutPlan, asked=session.console.asked), policy.RolloutPlan
    )
    # Only a controller knows other gates; without one, the plan's own word is taken for it.
    shipped = policy.KIMI_K3
    gate = dataclasses.replace(shipped, id=given.gate, candidate_sms=(given.sm,), baseline_sms=())
    try:
        plan_check.validate(given, {given.gate: shipped if given.gate == shipped.id else gate})
    except errors.RejectedError as error:
        raise failures.usage(str(error), code=error.code, hint=error.next_step) from error
    found = [dataclasses.asdict(one) for one in plan_lint.remarks(given)]
    output.single(
        session.console,
        {"plan": given.id, "warnings": found},
        name=given.id,
        style=session.style,
        footer="",
        lines=plan_lines.lint_lines,
    )
    return exit_codes.OK


def _change(rollout: str, summary: str, *, typed: bool = False) -> asks.Change:
    return asks.Change(
        fields={"rollout": rollout},
        summary=summary,
        consequence=reach.of_rollout(rollout),
        typed_name=rollout if typed else None,
    )


@verbs.changes(
    NOUN,
    "approve",
    "rollout_approve",
    examples=["smgate rollout approve k3-107-a --reason 'evidence looked at'"],
)
def approve(rollout: RolloutId) -> asks.Change:
    """Agree, as another person than the author."""
    return _change(rollout, f"Rollout {rollout} is approved.")


@verbs.changes(
    NOUN,
    "start",
    "rollout_start",
    asks_first=True,
    alone=True,
    examples=[
        "smgate rollout start k3-107-a --reason 'window is open' --dry-run",
        "smgate rollout start k3-107-a --reason 'window is open' --at-position 81244",
    ],
)
def start(rollout: RolloutId) -> asks.Change:
    """Let the first wave open. Look with --dry-run, then start with the position it prints."""
    return _change(rollout, f"Rollout {rollout} starts: its first wave may open.")


@verbs.changes(
    NOUN,
    "pause",
    "rollout_pause",
    examples=["smgate rollout pause k3-107-a --reason 'p99 is up'"],
)
def pause(rollout: RolloutId) -> asks.Change:
    """Open nothing new for now. What stands, stands."""
    return _change(rollout, f"Rollout {rollout} is paused.")


@verbs.changes(
    NOUN,
    "resume",
    "rollout_resume",
    asks_first=True,
    alone=True,
    examples=["smgate rollout resume k3-107-a --reason 'p99 was the network'"],
)
def resume(rollout: RolloutId) -> asks.Change:
    """Go on after a pause."""
    return _change(rollout, f"Rollout {rollout} goes on: its next wave may open.")


@verbs.changes(
    NOUN,
    "halt",
    "rollout_halt",
    examples=["smgate rollout halt k3-107-a --reason 'wrong answers'"],
)
def halt(rollout: RolloutId) -> asks.Change:
    """End it because of a bad sign. Not asked about: it opens nothing and ends nothing that runs."""
    return _change(rollout, f"Rollout {rollout} is halted for good.")


@verbs.changes(
    NOUN,
    "abort",
    "rollout_abort",
    asks_first=True,
    examples=["smgate rollout abort k3-107-a --reason 'replaced by k3-107-b'"],
)
def abort(rollout: RolloutId) -> asks.Change:
    """End it because it is no longer wanted. What stands, stands."""
    return _change(rollout, f"Rollout {rollout} is aborted for good.", typed=True)


@verbs.changes(
    NOUN,
    "revoke",
    "rollout_revoke",
    asks_first=True,
    examples=[
        "smgate rollout revoke k3-107-a --wave 1 --reason 'rack 7 answers oddly' --dry-run",
        "smgate rollout revoke k3-107-a --unit k3-prod-07 --reason 'its owner asks'",
    ],
)
def revoke(
    rollout: RolloutId,
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="Only of this unit.", autocompletion=suggest.units),
    ] = None,
    wave: Annotated[
        int | None, typer.Option("--wave", min=0, help="Only of this wave's members; from 0.")
    ] = None,
) -> asks.Change:
    """Take back what it granted: the safe value at the next start. It restarts and pauses nothing."""
    whose = "" if wave is None else f" to the members of its wave {wave}"
    whose += "" if unit is None else f" to unit {unit}"
    return asks.Change(
        fields={"rollout": rollout, "unit": unit, "wave": wave},
        summary=f"What rollout {rollout} granted{whose} is taken back.",
        follows=reach.of_revoked(rollout),
        # Of one unit it is as little as a pin, and as much in a hurry.
        ask=unit is None,
    )
