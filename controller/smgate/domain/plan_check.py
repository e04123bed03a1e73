"""Refuses a rollout plan that would fail open, when it is proposed."""

from __future__ import annotations

from smgate.domain import windows
from smgate.domain.errors import RejectedError, check_name
from smgate.domain.policy import Gate, RolloutPlan, Selector, Wave, reject


def validate(plan: RolloutPlan, gates: dict[str, Gate]) -> None:
    """Refuse a rollout plan whose thresholds or waves would fail open.

    Raises:
        RejectedError: `bad_name`, `bad_policy`, `unknown_gate`.
    """
    check_name("rollout", plan.id)
    gate = gates.get(plan.gate)
    if gate is None:
        raise RejectedError(
            code="unknown_gate",
            message=f"No gate {plan.gate!r}.",
            next_step="See `smgate gate show`.",
        )
    if plan.sm not in gate.candidate_sms:
        raise reject(
            f"SM {plan.sm} is no candidate of gate {gate.id}.",
            f"Candidates: {', '.join(gate.candidate_sms)}.",
        )
    if not plan.waves:
        raise reject("A rollout needs a wave.", "Give waves: [{count: 1}, {percent: 100}].")
    for number, wave in enumerate(plan.waves):
        _wave(number, wave)
        _growth(number, wave, plan.waves[:number])
    for name in ("success_percent", "failure_percent"):
        value = getattr(plan, name)
        if not 0 < value <= 100:  # noqa: PLR2004  a percentage
            raise reject(f"{name} is {value}.", "Give a number above 0, at most 100.")
    for name in (
        "max_in_flight",
        "min_sample",
        "failures_max",
        "approvals",
        "wave_timeout_s",
        "rollout_timeout_s",
    ):
        value = getattr(plan, name)
        if value is not None and value < 1:
            raise reject(f"{name} is {value}.", "Give at least 1.")
    windows_problem = windows.problem(plan.freeze_windows)
    if windows_problem is not None:
        raise reject(*windows_problem)
    for name in ("bake_s", "golden_mismatches_max"):
        if getattr(plan, name) < 0:
            raise reject(f"{name} is negative.", "Give 0 or more.")


def _wave(number: int, wave: Wave) -> None:
    given = [one for one in (wave.count, wave.percent, wave.select) if one is not None]
    if len(given) != 1:
        raise reject(f"Wave {number} needs one of count, percent and select.", "Give exactly one.")
    if wave.select == Selector():
        raise reject(f"Wave {number} selects nothing by name.", "{percent: 100} takes all.")
    if wave.count is not None and wave.count < 1:
        raise reject(f"Wave {number} has count {wave.count}.", "Give at least 1.")
    if wave.percent is not None and not 0 < wave.percent <= 100:  # noqa: PLR2004  a percentage
        raise reject(f"Wave {number} has percent {wave.percent}.", "Give above 0, at most 100.")


def _growth(number: int, wave: Wave, before: tuple[Wave, ...]) -> None:
    """Waves are cumulative: one that asks for less than an earlier one is a slip of the pen.

    As much as an earlier one is no slip: it takes in those who joined since.
    """
    for earlier in before:
        for unit in ("count", "percent"):
            now, then = getattr(wave, unit), getattr(earlier, unit)
            if now is not None and then is not None and now < then:
                raise reject(
                    f"Wave {number} has {unit} {now:g}, and an earlier one {then:g}.",
                    "Waves are cumulative: none is smaller than those before it.",
                )
