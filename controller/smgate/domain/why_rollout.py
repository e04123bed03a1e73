"""What a rollout waits for: whose move it is, since when, until when, and what to do."""

from __future__ import annotations

from typing import Any, Final

from smgate.domain import (
    exposure,
    membership,
    plan_ahead,
    readings,
    rules,
    waits,
    waves,
    why,
)
from smgate.domain.next_steps import next_step
from smgate.domain.state import Fleet, Grant, Unit
from smgate.domain.state_rollouts import Rollout, Wave
from smgate.domain.why import iso

Row = dict[str, Any]

OWNERS: Final = {
    "max_in_flight": "controller",
    "wave_not_open": "controller",
    "rollout_paused": "approver",
    "not_approved": "approver",
    "freeze": "approver",
    "breaker_open": "approver",
    "unit_incomplete": "unit owner",
    "explicit_choice": "unit owner",
}
"""Who ends a refusal. Of any other an operator finds out what is missing."""


def explain_rollout(fleet: Fleet, rollout_id: str, now_us: int) -> Row:
    """What a rollout waits for, whose move it is, since when and until when."""
    rollout = fleet.rollouts[rollout_id]
    names = membership.eligible(fleet, rollout, now_us)
    return {
        "rollout": rollout.plan.id,
        "phase": rollout.phase,
        "halted_code": rollout.halted_code,
        "as_of_position": fleet.position,
        "now": iso(now_us),
        "author": rollout.author,
        "approver": rollout.approver,
        "approvers": list(rollout.approvers),
        "waits": [
            *(_shown(fleet, rollout, wait, now_us) for wait in _waits(fleet, rollout, now_us)),
            *_old_evidence(fleet, rollout, now_us),
        ],
        "members": _members(fleet, rollout, now_us),
        "waves": [_wave(fleet, rollout, wave) for wave in rollout.waves],
        "eligible_now": len(names),
        "next_wave": membership.upcoming(fleet, rollout, names),
        "not_eligible": {}
        if rollout.ended
        else plan_ahead.blocked(fleet, rollout, set(names), now_us)["blocked_by_code"],
    }


def _wave(fleet: Fleet, rollout: Rollout, wave: Wave) -> Row:
    counted = waves.tally(fleet, rollout, wave)
    result, sentence = waves.verdict(rollout, counted.counts)
    if wave.verdict not in (None, result):  # its members went on, or were taken back
        then, all_of_it = len(wave.good), len(wave.units)
        sentence = f"{then} of its {all_of_it} units were good when it was judged."
    return {
        "wave": wave.number,
        "units": list(wave.units),
        "eligible": wave.eligible,
        "verdict": wave.verdict or result,
        "sentence": sentence,
        "good": list(counted.good),
        "bad": list(counted.bad),
        "pending": list(counted.pending),
        "silent": list(counted.silent),
        "revoked": [
            name
            for name in wave.units
            if waves.revoked(fleet, rollout, wave, name) and name not in counted.bad
        ],
    }


def _waits(fleet: Fleet, rollout: Rollout, now_us: int) -> list[waits.Wait]:
    """The rollout's own waits; of a running one also what stands against its next wave."""
    name = rollout.plan.id
    keys = exposure.granted_keys(fleet, rollout)
    stops = ("freeze", "breaker_open") if rollout.phase == "running" else ()
    return [
        wait
        for wait in waits.of_world(fleet, {}, now_us)
        if wait.subject == name
        or wait.subject.startswith(f"{name}/")
        or wait.code in stops
        or (wait.code in ("suspect", "flaky") and wait.subject.partition("/")[0] in keys)
    ]


def _shown(fleet: Fleet, rollout: Rollout, wait: waits.Wait, now_us: int) -> Row:
    row = show_wait(fleet, wait, now_us)
    if row["next_step"] == f"smgate rollout why {rollout.plan.id}":  # that is what one reads
        row["next_step"] = "Nothing by itself: see its members, and what is next."
    return row


def _old_evidence(fleet: Fleet, rollout: Rollout, now_us: int) -> list[Row]:
    """Kernel keys that a running rollout granted and whose evidence has grown too old since."""
    age_us = fleet.policy.evidence_max_age_s * waits.SECOND_US
    old = [
        (key, known.qualified_at_us + age_us)
        for key in sorted(exposure.granted_keys(fleet, rollout))
        if (known := fleet.keys.get(key)) is not None
        and known.standing == "qualified"
        and now_us - known.qualified_at_us > age_us
    ]
    return [
        {
            "id": f"evidence_old/{key}",
            "code": "evidence_old",
            "subject": key,
            "owner": "operator",
            "since": iso(ended_us),
            "until": None,
            "overdue": False,
            "sentence": f"The evidence for kernel key {key} is too old: no further wave opens.",
            "next_step": next_step("evidence_old", {"key": key}),
        }
        for key, ended_us in old
        if rollout.phase == "running"
    ]


def _members(fleet: Fleet, rollout: Rollout, now_us: int) -> list[Row]:
    """Members of the open wave that have no good outcome: what each waits for, and for whom."""
    wave = rollout.open_wave
    if wave is None or rollout.ended:
        return []
    counted = waves.tally(fleet, rollout, wave)
    until_led_us = wave.since_led_us + rollout.plan.wave_timeout_s * waits.SECOND_US
    ends = iso(now_us + until_led_us - fleet.led_us(now_us))
    found = []
    for name in (*counted.bad, *counted.silent, *counted.pending):
        row = {
            "unit": name,
            "wave": wave.number,
            "late": name in counted.late,
            "since": None,
            "until": ends,
        }
        unit = fleet.units.get(name)
        if name in counted.bad:
            row |= _bad(name)
        elif name in counted.silent:
            row |= _silent(fleet, fleet.units[name])
        elif unit is not None:
            row |= _pending(fleet, rollout, unit, now_us, ends)
        found.append(row)
    return found


def _bad(name: str) -> Row:
    return {
        "state": "bad",
        "owner": "operator",
        "until": None,
        "sentence": "It went bad on the target.",
        "next_step": f"smgate unit history {name}: what happened to it.",
    }


def _silent(fleet: Fleet, unit: Unit) -> Row:
    known = [(rank.node, fleet.nodes.get(rank.node)) for rank in unit.known_ranks.values()]
    nodes = sorted(name for name, node in known if node is None or node.silent)
    heard = min((n.last_contact_us for _, n in known if n is not None and n.silent), default=0)
    return {
        "state": "silent",
        "owner": "operator",
        "since": iso(heard) if heard else None,
        "sentence": f"Nobody hears of {', '.join(nodes)}: nothing is known that could pass.",
        "next_step": next_step("silent"),
    }


def _pending(fleet: Fleet, rollout: Rollout, unit: Unit, now_us: int, ends: str) -> Row:
    grant = exposure.granted_by(fleet, unit, rollout)
    if grant is None:
        return _not_granted(fleet, unit, now_us)
    if not grant.launched:
        timer = next((w for w in waits.of_unit(fleet, unit, now_us) if w.code == "grant"), None)
        shown = {} if timer is None else show_wait(fleet, timer, now_us)
        return {
            "state": "waits_for_restart",
            "owner": "unit owner",
            "since": wall(fleet, grant.since_led_us),
            "until": min(filter(None, (shown.get("until"), ends))),
            "sentence": "Granted; it takes effect when its server starts again.",
            "next_step": "Restart the server when it suits its owner.",
        }
    return _in_flight(fleet, rollout, unit, grant)


def _not_granted(fleet: Fleet, unit: Unit, now_us: int) -> Row:
    decision = rules.decide_unit(fleet, unit.id, now_us)
    event = decision.event
    code = event.code.partition(":")[0]
    return {
        "state": "not_granted",
        "code": event.code,
        "owner": OWNERS.get(code, "operator"),
        "sentence": event.sentence,
        "next_step": next_step(event.code, why.names(decision.context)),
    }


def _in_flight(fleet: Fleet, rollout: Rollout, unit: Unit, grant: Grant) -> Row:
    """A unit that was started anew on what it was granted."""
    launch = unit.launch
    assert launch is not None, "its grant was launched"
    live = unit.live_instances()
    attested = {i.node_rank for i in live if i.effective is not None}
    wrong = [i for i in live if i.effective is not None and not readings.on_target(fleet, i)]
    since = wall(fleet, launch.opened_led_us)
    if wrong:
        pair = wrong[0].effective
        assert pair is not None
        return {
            "state": "other_runner",
            "owner": "unit owner",
            "since": since,
            "sentence": f"{wrong[0].id} on {wrong[0].node} runs ({pair.runner}, {pair.a2a}), not "
            "the target.",
            "next_step": f"smgate unit why {unit.id}; restart it behind the launch gate.",
        }
    if len(attested) < launch.nnodes:
        return {
            "state": "starts",
            "owner": "unit owner",
            "since": since,
            "sentence": f"Started again; {len(attested)} of {launch.nnodes} ranks attest what they "
            "run.",
            "next_step": f"Look at the start of its server: smgate unit history {unit.id}.",
        }
    if not any(i.state == "serving" for i in live):
        return {
            "state": "does_not_serve",
            "owner": "unit owner",
            "since": since,
            "sentence": "It runs the target and does not serve.",
            "next_step": f"Look at its log; smgate unit history {unit.id}.",
        }
    if grant.bake_s >= rollout.plan.bake_s and grant.golden_mismatches is None:
        return {
            "state": "waits_for_golden",
            "owner": "unit owner",
            "since": since,
            "sentence": "It has baked; nobody has asked golden prompts of it, which its plan requires.",
            "next_step": "Run the job that asks them: smgate-agent golden on its node reports it.",
        }
    return {
        "state": "bakes",
        "owner": "unit owner",
        "since": since,
        "sentence": f"It has served {grant.bake_s} of {rollout.plan.bake_s} s with traffic.",
        "next_step": "Keep traffic on it: only reported intervals with requests count.",
    }


def wall(fleet: Fleet, led_us: int) -> str:
    """An instant of the led clock on the wall clock."""
    return iso(fleet.wall_us(led_us))


def show_wait(fleet: Fleet, wait: waits.Wait, now_us: int) -> dict[str, Any]:
    """A wait with its instants on the wall clock; `until` is None when only a person ends it."""
    since_led_us = min(wait.since_led_us, fleet.led_us(now_us))
    return {
        "id": wait.id,
        "code": wait.code,
        "subject": wait.subject,
        "owner": wait.owner,
        "since": wall(fleet, since_led_us) if wait.since_led_us else None,
        "until": None if wait.remaining_us is None else iso(now_us + wait.remaining_us),
        "overdue": wait.remaining_us is not None and wait.remaining_us <= 0,
        "sentence": wait.sentence,
        "next_step": wait.next_step,
    }
