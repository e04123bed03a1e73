"""`smgate simulate`: a scenario through the real rules, without a server or a network."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Final

import typer

from smgate.cli import exit_codes, failures, output, scenario_lines, session as sessions, verbs

NOUN: Final = verbs.noun("simulate", "Scenarios through the real rules; no server, no network.")


@verbs.does(
    NOUN,
    "run",
    remote=False,
    examples=[
        "smgate simulate run tests/simulation/scenarios/first_canary.yaml",
        "smgate simulate run tests/simulation/scenarios/first_canary.yaml --json",
    ],
)
def run(
    session: sessions.Session,
    scenario: Annotated[Path, typer.Argument(metavar="FILE", help="The scenario.")],
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> int:
    """Run a scenario: facts and commands with their times in, overrides and alarms out."""
    if as_json:
        session.console.json_errors = True
    from smgate.scenario import document, runner

    _keep_the_leader_quiet()
    if not scenario.exists():
        raise failures.usage(f"There is no file {scenario}.")
    try:
        result = runner.run_file(scenario)
    except document.ScenarioError as error:
        raise failures.CliError(
            f"{scenario}: {error}", code="bad_scenario", hint="See tests/simulation/README.md."
        ) from error
    if as_json:
        session.console.data(json.dumps(result, ensure_ascii=False))
    else:
        output.single(
            session.console,
            result,
            name=scenario.name,
            style=session.style,
            footer="",
            lines=scenario_lines.lines,
        )
    return exit_codes.OK


@verbs.does(
    NOUN,
    "fleet",
    remote=False,
    examples=[
        "smgate simulate fleet --seed 7",
        "smgate simulate fleet --seed 7 --nodes 200 --days 30 --faults away,silence,wrong --json",
    ],
)
def fleet(
    session: sessions.Session,
    seed: Annotated[int, typer.Option(help="Another seed is another history.")] = 1,
    nodes: Annotated[
        int, typer.Option(min=5, max=5_000, help="Machines, a few of them a pool.")
    ] = 60,
    days: Annotated[float, typer.Option(min=0.1, max=400, help="How long it plays.")] = 14.0,
    faults: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="What may go wrong: `all`, `none`, or some of: away, bf16, broken, crash, driver, "
            "hang, image, late, lost, people, reimage, silence, wrong.",
        ),
    ] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> int:
    """Play a whole fleet from a seed, with what goes wrong in it; every invariant is checked.

    The same seed gives the same bytes. Exit code 1 if an invariant did not hold.
    """
    from smgate.scenario import virtual, virtual_people

    _keep_the_leader_quiet()
    names = {"all": ",".join(virtual.FAULTS), "none": ""}.get(faults, faults)
    chosen = frozenset(filter(None, names.split(",")))
    if unknown := sorted(chosen.difference(virtual.FAULTS)):
        raise failures.usage(
            f"There is no fault {unknown[0]!r}.", hint=f"Some of {','.join(virtual.FAULTS)}."
        )
    if as_json:
        session.console.json_errors = True
    began_us = session.clock.now_us()
    world = virtual_people.play(virtual.Spec(seed=seed, nodes=nodes, days=days, faults=chosen))
    spent_s = max(0.001, (session.clock.now_us() - began_us) / 1_000_000)
    summary = world.summary()
    if as_json:
        session.console.data(json.dumps(summary | {"report": world.lines}, ensure_ascii=False))
    else:
        output.single(
            session.console,
            summary | {"report": world.lines},
            name=f"seed-{seed}",
            style=session.style,
            footer="",
            lines=scenario_lines.fleet_lines,
        )
    session.console.note(f"{spent_s:.1f} s: {days * 86_400 / spent_s:,.0f} times real speed.")
    return exit_codes.ERROR if summary["violations"] else exit_codes.OK


def _keep_the_leader_quiet() -> None:
    """What it logs is for an operator's log; Python would write it to stderr if nobody took it."""
    logging.getLogger("smgate").addHandler(logging.NullHandler())
