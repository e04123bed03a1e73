"""`smgate simulate`: a scenario through the real rules, without a server or a network."""

from __future__ import annotations

import json
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
