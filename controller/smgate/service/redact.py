"""Owns erasing the payload of one fact for good, on the database itself, while no controller runs.

The fold takes an erased fact as one that was never reported. So a fact is erased only once nothing
stands on it: every unit's answer, every alarm, every kernel key's standing and every gap must be the
same without it. Nothing is let through by erasing what held it back.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from smgate.domain import alarms, decisions, evolve, facts, redaction, rules
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.log import codec, port, redactions, sql
from smgate.service import credentials, leader, openings, records, refusal, strict

WRITER: Final = "redact"
PAGE: Final = 1_000


def redact(
    store: sql.SqlStore, position: int, *, by: str, reason: str, at_us: int, dry_run: bool = False
) -> dict[str, Any]:
    """Record the order, then erase; what was erased, or with `dry_run` would be.

    Given again it finishes an erasure that was interrupted, and otherwise changes nothing.

    Raises:
        RefusedError: `controller_runs`, `unknown_position`, `not_a_fact`, `log_bad`,
            `still_in_force`, `archive_begun`, `bad_name`; `reason_needed` and others of `strict.check_reason`.
        NotFinalizedError: the release before could not read the log any more.
    """
    credentials.check_name(by)
    strict.check_reason(reason)
    if store.lease_lives(leader.LEASE):
        raise refusal.RefusedError(
            409,
            "controller_runs",
            "A controller leads this log and has folded the fact.",
            next_step="Stop every controller process; its lease ends some seconds later.",
        )
    record = _record(store, position)
    known = redactions.read(store).get(position)
    if known is None:
        _check(store, record, at_us)
    told = {
        "position": position,
        "fact": record.type,
        "changed": known is None or record.data != b"",
    }
    if dry_run:
        return told | {"changed": False}
    if known is None:
        store.append([_order(store, record, by=by, reason=reason, at_us=at_us)], writer=WRITER)
    store.erase(position)
    return told


def _record(store: port.Store, position: int) -> port.StoredRecord:
    try:
        found = store.read(after=position - 1, limit=1)
    except port.BelowFloorError as error:
        raise refusal.RefusedError(
            409,
            "archived",
            f"Position {position} is in the archive, whose files are never changed.",
            next_step="Its payload can be read in the file alone: keep that from whom it is not for, "
            "or remove it, and with it what is known of that time.",
        ) from error
    if not found or found[0].position != position:
        raise refusal.RefusedError(
            404,
            "unknown_position",
            f"The log has no position {position}.",
            next_step="`smgate log tail` and `smgate unit history` name positions.",
        )
    return found[0]


def _order(
    store: port.Store, record: port.StoredRecord, *, by: str, reason: str, at_us: int
) -> port.NewRecord:
    ordered = redaction.FactRedacted(
        position=record.position,
        fact=record.type,
        digest=hashlib.sha256(record.data).hexdigest(),
        reason=reason,
    )
    [made] = records.of_events(
        [ordered],
        stream=redactions.STREAM,
        first_version=store.stream_version(redactions.STREAM) + 1,
        actor=records.operator_actor(by),
        at_us=at_us,
    )
    return made


def _check(store: port.Store, record: port.StoredRecord, at_us: int) -> None:
    if record.data == b"":
        raise refusal.RefusedError(
            409,
            "log_bad",
            f"The payload at position {record.position} was erased without an order.",
            next_step="`smgate log verify` says what is wrong with the log.",
        )
    if codec.NAMES.get(record.type) not in facts.Fact.__args__:
        raise refusal.RefusedError(
            422,
            "not_a_fact",
            f"Position {record.position} holds {record.type!r}: a ruling or a decision, not a fact.",
            next_step="Only what a node reported can be erased; who decided what stays on record.",
        )
    through = store.head().position
    whole = _standing(_folded(store, through), at_us)
    without = _standing(_folded(store, through, without=record.position), at_us)
    for name in sorted(whole.keys() | without.keys()):
        if whole.get(name) != without.get(name):
            raise _in_force(record, f"{name} would not be what it is")


def _in_force(record: port.StoredRecord, what: str) -> refusal.RefusedError:
    return refusal.RefusedError(
        409,
        "still_in_force",
        f"Without the {record.type} at position {record.position}, {what}.",
        next_step="Let the node report anew (start the server again, repeat the check, retire the "
        "node): what a newer fact has replaced can be erased.",
    )


def _folded(store: port.Store, through: int, *, without: int | None = None) -> Fleet:
    opening = openings.begin(store, store.head().floor_position)
    fleet = Fleet() if opening is None else opening.fleet
    while fleet.position < through and (page := store.read(after=fleet.position, limit=PAGE)):
        for record in page:
            left = record._replace(data=b"") if record.position == without else record
            recorded = codec.recorded(left)
            _check_opening(recorded.event, without)
            evolve.evolve(fleet, recorded)
    return fleet


def _check_opening(event: Event, position: int | None) -> None:
    """Refuse what a cut that did not come to its end has folded: it stands in the log once more."""
    if not isinstance(event, decisions.OpeningRecorded) or position is None:
        return
    if event.floor >= position:
        raise refusal.RefusedError(
            409,
            "archive_begun",
            f"A cut of the log that was stopped has recorded what was folded up to position {event.floor}, "
            "and with it perhaps this payload.",
            next_step="Give `smgate log archive` once more. When both are in files of the archive, keep "
            "those from whom they are not for, or remove them.",
        )


def _standing(fleet: Fleet, at_us: int) -> dict[str, object]:
    """Everything that is decided or alarmed now, by what it is called."""
    now_us = max(fleet.now_us, at_us)
    held = alarms.Held()
    held.look(fleet, fleet.units.values(), now_us)
    found: dict[str, object] = {
        f"unit {unit.id}": rules.says(fleet, unit, now_us) for unit in fleet.units.values()
    }
    found |= {f"alarm {cause} on SM {sm}": units for (_, sm, cause), units in held.units.items()}
    for name, key in fleet.keys.items():
        found[f"kernel key {name}"] = key.standing
        for gpus, one in key.sets.items():
            worst = {check: fact.outcome for check, fact in one.worst.items()}
            found[f"the evidence of GPUs {', '.join(gpus)}"] = (worst, one.flaky)
    for (gpu, _), (code, _) in fleet.gpu_memory.items():
        found[f"what is remembered of GPU {gpu}"] = code
    found["the count of bad signs"] = len(fleet.bad_signs)
    found["the proof of the probes"] = fleet.baseline_passes
    found |= {f"node {name}": bool(node.gaps) for name, node in fleet.nodes.items()}
    return found
