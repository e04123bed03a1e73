"""How a scenario's run reads to a person: per moment, what happened and what then stands."""

from __future__ import annotations

from typing import Any

from smgate.cli import output, unit_rows


def lines(result: output.Row) -> list[str]:
    """The whole run, moment by moment."""
    told = [output.text_of(result.get("name"))]
    for moment in result.get("times") or ():
        told += ["", *_moment(moment)]
    chain = "whole" if result.get("chain_ok") else "NOT WHOLE"
    told += ["", f"{output.text_of(result.get('log_events'))} events, the chain is {chain}."]
    return told


def _moment(moment: output.Row) -> list[str]:
    told = [f"{moment.get('at_s'):g} s  {output.text_of(moment.get('time'))}"]
    told += [f"  refused    {output.text_of(one)}" for one in moment.get("refused") or ()]
    told += [
        f"  {output.text_of(one.get('position')):>8}  {output.text_of(one.get('actor'))}: "
        f"{output.text_of(one.get('says'))}"
        for one in moment.get("events") or ()
    ]
    overrides: dict[str, Any] = moment.get("overrides") or {}
    for unit, one in overrides.items():
        told.append(f"  unit       {output.text_of(unit)}: {_override(one)}")
    for name, rollout in (moment.get("rollouts") or {}).items():
        told.append(f"  rollout    {output.text_of(name)}: {output.text_of(_phase(rollout))}")
    for key, standing in (moment.get("kernel_keys") or {}).items():
        told.append(f"  key        {output.text_of(key)}: {output.text_of(standing)}")
    for one in moment.get("alarms") or ():
        units = output.text_of(one.get("units"))
        told.append(f"  alarm      {output.text_of(one.get('cause'))}: {units}")
    for one in moment.get("waits") or ():
        told.append(f"  wait       {output.text_of(one.get('sentence'))}")
    for word in ("exposed", "uncontrolled", "silent", "freezes"):
        if moment.get(word):
            told.append(f"  {word:<10} {output.text_of(moment[word])}")
    if moment.get("breaker_open"):
        told.append("  breaker    open")
    return told


def _override(one: output.Row) -> str:
    would = one.get("would")
    instead = f", would be {unit_rows.short(would)}" if would else ""
    return f"{unit_rows.short(one)} ({output.text_of(one.get('code'))}){instead}"


def _phase(rollout: object) -> object:
    return rollout.get("phase") if isinstance(rollout, dict) else rollout


def fleet_lines(result: output.Row) -> list[str]:
    """A played fleet: the report, then the numbers."""
    told = [
        f"A fleet of {result['nodes']} machines for {result['days']:g} days, seed {result['seed']}"
    ]
    told += ["", *map(output.text_of, result["report"]), ""]
    told.append("day   units  granted  on target  on a wrong kernel  exposed  uncontrolled")
    told += [
        f"{one['day']:3} {one['units']:7} {one['granted']:8} {one['on_target']:10} "
        f"{one['on_wrong_kernels']:18} {one['exposed']:8} {one['uncontrolled']:13}"
        for one in result["exposure"]
    ]
    counts = (f"{name.replace('_', ' ')} {number}" for name, number in result["counts"].items())
    told += ["", ", ".join(counts)]
    chain = "whole" if result["chain_ok"] else "NOT WHOLE"
    told.append(f"{result['log_events']} events, the chain is {chain}.")
    told.append(f"{sum(result['checks'].values())} checks of {len(result['checks'])} invariants:")
    told += [f"  {number:9}  {name.replace('_', ' ')}" for name, number in result["checks"].items()]
    told += [
        f"VIOLATED at {one['position']}: {one['invariant']}: {output.text_of(one['sentence'])}"
        for one in result["violations"]
    ]
    return told
