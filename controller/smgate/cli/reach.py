"""Owns the numbers a person sees before agreeing: whom a change reaches, and how they stand now.

Counted from the controller's own lists; what follows is decided by the controller alone.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smgate import client
from smgate.cli import output, unit_rows

Consequence = Callable[[client.Client], list[str]]


def of_gate(gate: str, sms: Sequence[str], *, sm_default: str = "candidate_sms") -> Consequence:
    """Units of a gate on these SMs; on none given, all of its candidate SMs."""

    def look(connection: client.Client) -> list[str]:
        wanted = set(sms)
        if not wanted:
            rows = output.items_of(connection.get(client.path("gates")).body)
            for row in rows:
                if row.get("id") == gate:
                    wanted.update(row.get(sm_default) or ())
        where = f"of gate {gate} on SM {', '.join(sorted(wanted))}"
        return _units(
            connection,
            where,
            lambda row: row.get("gate") == gate and row.get("sm") in wanted,
        )

    return look


def of_all() -> Consequence:
    """All units that any gate covers."""
    return lambda connection: _units(
        connection, "that a gate covers", lambda row: row.get("gate") is not None
    )


def of_waiting() -> Consequence:
    """Units that get the safe value now and may get the target."""
    return lambda connection: _units(
        connection,
        "that wait for the target",
        lambda row: output.pick(row, "override.form") == "append" and row.get("grant") is None,
    )


def of_unit(unit: str) -> Consequence:
    """How one unit stands."""

    def look(connection: client.Client) -> list[str]:
        row = output.object_of(connection.get(client.path("units", unit)).body)
        return [
            f"Now: {unit_rows.decided(row)} ({output.text_of(output.pick(row, 'override.code'))}), "
            f"runs {unit_rows.runs(row)}."
        ]

    return look


def of_rollout(rollout: str) -> Consequence:
    """How far a rollout reaches."""

    def look(connection: client.Client) -> list[str]:
        row = output.object_of(connection.get(client.path("rollouts", rollout)).body)
        plan: dict[str, Any] = row.get("plan") or {}
        waves = ", ".join(wave_of(wave) for wave in plan.get("waves") or ())
        lines = [
            f"Plan: waves of {waves or '-'}, at most {plan.get('max_in_flight')} in flight.",
            f"Opened so far: {len(row.get('waves') or ())} of {row.get('waves_planned')} waves.",
        ]
        gate, sm = row.get("gate"), row.get("sm")
        if isinstance(gate, str) and isinstance(sm, str):
            lines += of_gate(gate, [sm])(connection)
        return lines

    return look


def of_revoked(rollout: str) -> Callable[[client.Client, list[output.Row]], list[str]]:
    """How many units' grants end, who of them runs the target until when, and what goes on."""

    def look(connection: client.Client, events: list[output.Row]) -> list[str]:
        names = {unit for event in events for unit in event.get("units") or ()}
        if not names:
            return [f"No grant of rollout {rollout} is left there: nothing to take back."]
        rows = output.items_of(connection.get(client.path("units")).body)
        running = sum(1 for row in rows if row.get("id") in names and row.get("on_target"))
        lines = [
            f"Units whose grant ends: {len(names)}. Off the target now: {len(names) - running}. "
            f"At their next start: {running}.",
        ]
        if running:
            lines.append("None is restarted by this: smgate unit pin UNIT off restarts one.")
        row = output.object_of(connection.get(client.path("rollouts", rollout)).body)
        if row.get("phase") == "running":
            lines.append(f"Its next waves still open: smgate rollout pause {rollout} stops that.")
        return lines

    return look


def of_restore() -> Consequence:
    """Which nodes have not said what they were told, and which units stand on what is more careful."""

    def look(connection: client.Client) -> list[str]:
        waits = output.items_of(connection.get(client.path("waits")).body)
        lines = [output.text_of(one.get("sentence")) for one in waits if one["code"] == "restore"]
        rows = output.items_of(connection.get(client.path("units")).body)
        names = [
            output.text_of(row.get("id"))
            for row in rows
            if output.pick(row, "override.code") == "held_before_restore"
        ]
        lines.append(f"Units that keep what is more careful, until a person accepts: {len(names)}.")
        return [*lines, *(f"  {name}" for name in names)]

    return look


def of_policy(wanted: dict[str, Any]) -> Consequence:
    """Which numbers would differ."""

    def look(connection: client.Client) -> list[str]:
        current = output.object_of(connection.get(client.path("policy")).body)
        lines = [
            f"  {key}: {output.text_of(current[key])} -> {output.text_of(value)}"
            for key, value in wanted.items()
            if key in current and current[key] != value
        ]
        return [*(lines or ["  no number that is given differs"]), *of_all()(connection)]

    return look


def wave_of(wave: object) -> str:
    """One wave of a plan, short."""
    if not isinstance(wave, dict):
        return output.text_of(wave)
    percent, named = wave.get("percent"), wave.get("select")
    if isinstance(named, dict):
        return "; ".join(f"{name} {', '.join(found)}" for name, found in named.items() if found)
    return output.text_of(wave.get("count")) if percent is None else f"{percent:g} %"


def window_of(window: dict[str, Any]) -> str:
    """One freeze window of a plan, short."""
    days = ", ".join(window.get("days") or ())
    starts, ends = output.text_of(window.get("starts")), output.text_of(window.get("ends"))
    if not days:
        return f"{starts} to {ends}"
    return f"{days} {starts} to {ends} UTC{output.text_of(window.get('utc_offset'))}"


def _units(
    connection: client.Client, where: str, chosen: Callable[[output.Row], bool]
) -> list[str]:
    rows = output.items_of(connection.get(client.path("units")).body)
    rows = [row for row in rows if row.get("live", True) and chosen(row)]
    lines = [f"Units {where}: {len(rows)}."]
    if not rows:
        return lines
    lines.append(f"  decided now: {_counted(unit_rows.decided(row) for row in rows)}")
    would = [row for row in rows if output.pick(row, "override.would") is not None]
    if would:
        lines.append(f"  decided without observe mode: {_counted(map(unit_rows.would, would))}")
    on_target = sum(1 for row in rows if row.get("on_target"))
    lines.append(f"  on the target now: {on_target}")
    return lines


def _counted(words: Iterable[str]) -> str:
    counts = collections.Counter(words)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())
