"""What is odd about a rollout plan that is valid: nothing here refuses it, a person should look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smgate.domain import windows
from smgate.domain.policy import RolloutPlan, Selector

ALL_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing to look at, and what would end it."""

    code: str
    sentence: str
    next_step: str


def remarks(plan: RolloutPlan, *, sizes: Sequence[int] | None = None) -> list[Remark]:
    """Everything odd about a plan, in a stable order.

    Args:
        plan: a valid one.
        sizes: how many units each wave would add, where somebody has counted. Without it only waves
            given as counts have a size.
    """
    reached = [wave.count for wave in plan.waves]
    added = [
        None if here is None or (number and reached[number - 1] is None) else here - (before or 0)
        for number, (before, here) in enumerate(zip([0, *reached], reached, strict=False))
    ]
    known = list(sizes) if sizes is not None else added
    return [
        *_reach(plan),
        *_order(plan),
        *_named(plan, known),
        *_samples(plan, known),
        *_clocks(plan),
    ]


def _reach(plan: RolloutPlan) -> Iterator[Remark]:
    last = plan.waves[-1]
    if last.percent != ALL_PERCENT:
        share = "the units it names"
        if last.select is None:
            share = f"{last.count} units" if last.percent is None else f"{last.percent:g} %"
        yield Remark(
            code="last_wave_partial",
            sentence=f"The last wave ends at {share}: the rollout completes for its members only, "
            "and no other unit gets the target by it.",
            next_step="End with {percent: 100}, or plan the rest as a rollout of its own.",
        )
    if plan.waves[0].percent == ALL_PERCENT:
        yield Remark(
            code="no_canary",
            sentence="The first wave takes every unit: nothing is learned before all restart.",
            next_step="Begin with {count: 1}.",
        )


def _order(plan: RolloutPlan) -> Iterator[Remark]:
    for number, (before, here) in enumerate(zip(plan.waves, plan.waves[1:], strict=False), start=1):
        for name in ("count", "percent"):
            earlier, later = getattr(before, name), getattr(here, name)
            if earlier is not None and later is not None and later <= earlier:
                yield Remark(
                    code="wave_adds_nobody",
                    sentence=f"Wave {number} has {name} {later:g} after {earlier:g}. Waves are "
                    "cumulative, so it takes in nobody new.",
                    next_step="Give each wave more than the one before.",
                )


def _named(plan: RolloutPlan, sizes: Sequence[int | None]) -> Iterator[Remark]:
    """What waves that name their units make of them."""
    earlier: list[Selector] = []
    for number, wave in enumerate(plan.waves):
        if wave.select is None:
            continue
        for name in ("units", "racks", "kernel_keys"):
            covered = getattr(plan.select, name)
            outside = sorted(set(getattr(wave.select, name)) - set(covered)) if covered else []
            if outside:
                yield Remark(
                    code="wave_outside_plan",
                    sentence=f"Wave {number} names {outside[0]}, which the plan's own select "
                    f"({name}) leaves out: it never takes it.",
                    next_step="Name it in the plan's select too, or in no wave.",
                )
        if wave.select in earlier or sizes[number] == 0:
            yield Remark(
                code="wave_takes_nobody",
                sentence=f"Wave {number} names units, and takes in none: it waits until one is "
                "eligible, unless all of them were in an earlier wave.",
                next_step="Look at the names, and at why they are not eligible: "
                "smgate rollout plan FILE.",
            )
        earlier.append(wave.select)


def _samples(plan: RolloutPlan, sizes: Sequence[int | None]) -> Iterator[Remark]:
    first = sizes[0]
    if plan.min_sample is not None and first is not None and 0 < first < plan.min_sample:
        yield Remark(
            code="sample_above_wave",
            sentence=f"min_sample is {plan.min_sample} and the first wave has {first}: it can only "
            "end inconclusive, which pauses.",
            next_step="Lower min_sample, leave it away (all members), or widen the first wave.",
        )
    small = [
        str(number)
        for number, size in enumerate(sizes)
        if size is not None and 0 < size < plan.failures_max
    ]
    if small:
        yield Remark(
            code="failures_above_wave",
            sentence=f"failures_max is {plan.failures_max}, more than the units of wave "
            f"{', '.join(small)}: so many cannot go bad there.",
            next_step="Lower failures_max; failure_percent alone would have to stop such a wave.",
        )
    if plan.failures_max > 1 and plan.success_percent == ALL_PERCENT:
        yield Remark(
            code="failure_never_passes",
            sentence=f"failures_max {plan.failures_max} lets a wave go on after a failure, and "
            "success_percent 100 never lets it pass then: it ends inconclusive.",
            next_step="Lower success_percent, or let one failure halt.",
        )


def _clocks(plan: RolloutPlan) -> Iterator[Remark]:
    if plan.bake_s == 0:
        yield Remark(
            code="no_bake",
            sentence="bake_s is 0: a unit is good as soon as it serves, before any traffic.",
            next_step="Give seconds of serving with traffic, such as 1800.",
        )
    if plan.wave_timeout_s <= plan.bake_s:
        yield Remark(
            code="wave_ends_before_bake",
            sentence=f"wave_timeout_s {plan.wave_timeout_s} is not above bake_s {plan.bake_s}: the "
            "wave's time is out before a unit can have baked.",
            next_step="Raise wave_timeout_s by what a restart takes, and the bake.",
        )
    for window in plan.freeze_windows:
        lasts_s = windows.length_s(window)
        if lasts_s >= plan.wave_timeout_s:
            yield Remark(
                code="window_outlasts_wave",
                sentence=f"The freeze window {window.words} lasts {lasts_s} s, and a wave's time is out "
                f"after {plan.wave_timeout_s} s: a wave that is open then may end inconclusive.",
                next_step="Raise wave_timeout_s above it, or start after the window.",
            )
    if plan.golden == "ignore" and plan.golden_mismatches_max:
        yield Remark(
            code="golden_ignored",
            sentence=f"golden_mismatches_max is {plan.golden_mismatches_max} and golden is ignore: "
            "no answer counts.",
            next_step="Give golden: require, or leave golden_mismatches_max away.",
        )
    needed_s = plan.bake_s * len(plan.waves)
    if plan.rollout_timeout_s <= needed_s:
        yield Remark(
            code="rollout_ends_before_bakes",
            sentence=f"rollout_timeout_s {plan.rollout_timeout_s} is not above the bakes of "
            f"{len(plan.waves)} waves, {needed_s} s.",
            next_step="Raise rollout_timeout_s.",
        )
