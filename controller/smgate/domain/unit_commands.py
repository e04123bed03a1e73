"""Commands about one unit or one machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from smgate.domain import commands, context, exposure, fleet_asks, policy, rulings
from smgate.domain.errors import RejectedError, is_name
from smgate.domain.events import Event
from smgate.domain.state import IN_SERVICE, Fleet, Unit

NAME_MAX: Final = 120
"""As long as the wire lets a node's name be."""


def find_unit(fleet: Fleet, text: str) -> Unit:
    """A unit by its id, or by an unambiguous beginning of it (a one-node unit: its node's name).

    Raises:
        RejectedError: `unknown_unit`, `ambiguous_unit`.
    """
    if text in fleet.units:
        return fleet.units[text]
    live = sorted(u for u in fleet.units if u.startswith(text) and fleet.units[u].live)
    exact = [u for u in live if u.rpartition(":")[0] == text]
    found = exact or live
    if not text or not found:
        raise RejectedError(
            code="unknown_unit", message=f"No unit {text!r}.", next_step="See `smgate unit ls`."
        )
    if len(found) > 1:
        raise RejectedError(
            code="ambiguous_unit",
            message=f"{text!r} fits {len(found)} units, among them {found[0]} and {found[1]}.",
            next_step="Give more of the id.",
        )
    return fleet.units[found[0]]


def settled(fleet: Fleet, command: commands.Command) -> commands.Command:
    """The command with its unit's whole id: a beginning may fit another unit later."""
    unit = getattr(command, "unit", None)
    if unit is None:
        return command
    named: Any = command
    done: commands.Command = replace(named, unit=find_unit(fleet, unit).id)
    return done


def _exclude(fleet: Fleet, command: commands.ExcludeUnit, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    return () if unit.excluded else (rulings.UnitExcluded(unit=unit.id, reason=command.reason),)


def _include(fleet: Fleet, command: commands.IncludeUnit, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    if not unit.excluded and not unit.released:
        return ()
    return (rulings.UnitIncluded(unit=unit.id, reason=command.reason),)


def _pin(fleet: Fleet, command: commands.PinUnit, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    if command.break_glass and command.direction == "off":
        raise RejectedError(
            code="bad_pin",
            message="The safe value needs no break-glass.",
            next_step="Pin off without it.",
        )
    pin = unit.pin
    same = pin is not None and (pin.direction, pin.break_glass) == (
        command.direction,
        command.break_glass,
    )
    if same:
        return ()
    return (
        rulings.PinSet(
            unit=unit.id,
            direction=command.direction,
            break_glass=command.break_glass,
            reason=command.reason,
        ),
    )


def _unpin(fleet: Fleet, command: commands.UnpinUnit, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    return () if unit.pin is None else (rulings.PinRemoved(unit=unit.id, reason=command.reason),)


def _clear_memory(fleet: Fleet, command: commands.ClearMemory, by: str) -> tuple[Event, ...]:
    """What a check found is no matter of this: it is measured anew (`build rule --as cleared`)."""
    unit = find_unit(fleet, command.unit)
    gpus = {uuid for rank in unit.known_ranks.values() for uuid in rank.gpu_uuids}
    found = sorted(
        (uuid, key)
        for (uuid, key), (code, _) in fleet.gpu_memory.items()
        if uuid in gpus and code in IN_SERVICE
    )
    if not found:
        return ()
    return (
        rulings.MemoryCleared(
            unit=unit.id,
            gpu_uuids=tuple(dict.fromkeys(uuid for uuid, _ in found)),
            kernel_keys=tuple(sorted({key for _, key in found})),
            reason=command.reason,
        ),
    )


def _adopt_flag(fleet: Fleet, command: commands.AdoptFlag, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    if unit.flag_adopted:
        return ()
    return (rulings.FlagAdopted(unit=unit.id, reason=command.reason),)


def _accept(fleet: Fleet, command: commands.AcceptUnit, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    if unit.adoption == "accepted":
        return ()
    if unit.adoption != "adopted":
        raise RejectedError(
            code="not_adopted",
            message=f"Unit {unit.id} is not adopted.",
            next_step="Only a unit first seen already on the target can be accepted.",
        )
    keys = context.of_unit(fleet, unit, fleet.now_us).kernel_keys
    if keys is None or len(keys) != 1:
        raise RejectedError(
            code="no_kernel_key",
            message="The kernel key this unit runs is not known, so it cannot be granted.",
            next_step="Restart it behind the launch gate, or take it back.",
        )
    standing = fleet.keys[keys[0]].standing if keys[0] in fleet.keys else "unknown"
    if standing in ("suspect", "failed"):
        raise RejectedError(
            code=f"build_{standing}",
            message=f"Kernel key {keys[0]} is {standing}.",
            next_step="Take the unit back, or wait until the key is cleared.",
        )
    return (
        rulings.AdoptionDecided(
            unit=unit.id, ruling="accepted", kernel_key=keys[0], reason=command.reason
        ),
    )


def _take_back(fleet: Fleet, command: commands.TakeBackUnit, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    if unit.adoption == "taken_back":
        return ()
    if unit.adoption is None and unit.grant is not None:
        raise RejectedError(
            code="granted",
            message=f"Unit {unit.id} was granted"
            + (f" by rollout {unit.grant.rollout}." if unit.grant.rollout else "."),
            next_step=f"smgate unit pin {unit.id} off ends the grant.",
        )
    if unit.adoption is None and not exposure.runs_target(fleet, unit):
        raise RejectedError(
            code="not_adopted",
            message=f"Unit {unit.id} does not run the target.",
            next_step="There is nothing to take back.",
        )
    return (
        rulings.AdoptionDecided(
            unit=unit.id, ruling="taken_back", kernel_key=None, reason=command.reason
        ),
    )


def _release(fleet: Fleet, command: commands.ReleaseUnit, by: str) -> tuple[Event, ...]:
    unit = find_unit(fleet, command.unit)
    if unit.released:
        return ()
    return (rulings.OverrideReleased(unit=unit.id, reason=command.reason),)


def _retire(fleet: Fleet, command: commands.RetireNode, by: str) -> tuple[Event, ...]:
    node = fleet.nodes.get(command.node)
    if node is None:
        raise RejectedError(
            code="unknown_node",
            message=f"No node {command.node!r}.",
            next_step="See `smgate node ls`.",
        )
    return () if node.retired else (rulings.NodeRetired(node=node.name, reason=command.reason),)


def _expect(fleet: Fleet, command: fleet_asks.ExpectFleet, by: str) -> tuple[Event, ...]:
    nodes = tuple(sorted(command.nodes, key=lambda node: node.name))
    for node in nodes:
        if not is_name(node.name) or len(node.name) > NAME_MAX or not policy.is_sm(node.sm):
            raise RejectedError(
                code="bad_node",
                message=f"Node {node.name!r} with SM {node.sm!r} cannot be expected.",
                next_step="Give each a name and an SM as major.minor: {name: gpu-0417, sm: 10.7}.",
            )
    twice = next((a.name for a, b in pairwise(nodes) if a.name == b.name), None)
    if twice is not None:
        raise RejectedError(
            code="bad_node",
            message=f"Node {twice!r} stands twice in the list.",
            next_step="Leave one of them out.",
        )
    if {node.name: node.sm for node in nodes} == fleet.inventory.expected:
        return ()
    return (rulings.FleetExpected(nodes=nodes, reason=command.reason),)


def _finish(fleet: Fleet, command: fleet_asks.FinishRestore, by: str) -> tuple[Event, ...]:
    return () if fleet.restore.finished else (rulings.RestoreFinished(reason=command.reason),)


Handler = Callable[[Fleet, Any, str], tuple[Event, ...]]

HANDLERS: Final[dict[type, Handler]] = {
    commands.RetireNode: _retire,
    fleet_asks.ExpectFleet: _expect,
    fleet_asks.FinishRestore: _finish,
    commands.ExcludeUnit: _exclude,
    commands.IncludeUnit: _include,
    commands.PinUnit: _pin,
    commands.UnpinUnit: _unpin,
    commands.AdoptFlag: _adopt_flag,
    commands.ClearMemory: _clear_memory,
    commands.AcceptUnit: _accept,
    commands.TakeBackUnit: _take_back,
    commands.ReleaseUnit: _release,
}
