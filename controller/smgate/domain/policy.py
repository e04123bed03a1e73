"""Gates, policy, known issues and rollout plans: what people publish, as data, and its validation.

Everything here is a value; a bad one is refused when it is published, never when it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Final, Literal

from smgate.domain.errors import RejectedError, check_name
from smgate.domain.windows import FreezeWindow

MATCH_FIELDS: Final = (
    "sm",
    "sglang",
    "flashinfer",
    "flashinfer_commit",
    "driver",
    "driver_branch",
    "cuda_toolkit",
    "torch",
    "torch_cuda",
    "cute_dsl",
    "architecture",
    "a2a",
    "disqualifying_env",
)
"""What a known issue may match on. Equality and a trailing wildcard; no ranges: support came,
was reverted and came back, so a range would be wrong."""

MATCH_FORMS: Final = {
    "sm": (r"\d+\.\d+|[\d.]+\*", "An SM is major.minor, such as 10.7, or 10.*."),
    "driver_branch": (r"\d+\*?", "A branch is the first number of a driver: 580 of 580.95.05."),
}
"""Fields of one form: a value of another one looks right, is published, and stops nothing."""


CRASH_LOOP_WINDOW_US: Final = 86_400_000_000
"""Failed exits further apart than a day are no loop: a server that dies once a month is none."""

STOPPED_CODES: Final = frozenset({0, 130, 143, -2, -15})
"""Exit codes of a server that was told to stop: it ended by itself, or by SIGINT or SIGTERM."""

WEIGHT_FORMATS: Final = ("mxfp4-pack-quantized",)
"""Formats that the rules can tell in a `config.json`. A gate for another would steer MXFP4 servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What is being enabled. The target is the pair (`target`, a2a `none`)."""

    id: str
    architecture: str
    weight_format: str
    target: str
    baseline_sms: tuple[str, ...]
    candidate_sms: tuple[str, ...]
    required_checks: tuple[str, ...]
    controlled_checks: tuple[str, ...] = ()
    """Checks that count only with their negative control caught in the same run."""


KIMI_K3: Final = Gate(
    id="kimi-k3-mxfp4",
    architecture="KimiK3ForConditionalGeneration",
    weight_format="mxfp4-pack-quantized",
    target="flashinfer_mxfp4",
    baseline_sms=("10.0", "10.3"),
    candidate_sms=("10.7",),
    required_checks=("api_boundary", "moe_mxfp4"),
    controlled_checks=("quantize", "moe_mxfp4"),
)
"""The gate that ships: Kimi-K3 on SM107."""


BAKE_LEASE_LEAST_S: Final = 300
"""Nodes are in contact twice a minute; a lease outlasts several missed answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Numbers the controller decides with. Durations count only while a leader leads."""

    min_gpu_sets: int = 3
    """Distinct GPU sets of the pool that must pass before a kernel key is qualified."""
    min_domains: int = 1
    """Distinct racks those sets must come from."""
    confirm_passes: int = 3
    """Other GPU sets that must pass before a single failure is called a node fault."""
    confirm_timeout_s: int = 3600
    """How long a key may stay suspect before the wait times out and pages."""
    check_timeout_s: int = 100
    """How long a wanted check may stay open; below the launch gate's deadline of 120 s."""
    baseline_proof: Literal["required", "not_required"] = "not_required"
    """Whether a controlled check counts on a candidate SM only once its probe version has passed
    the required controlled checks on a baseline SM. Not required in this release: a fleet needs a
    baseline node in its pool first. It holds for results that come while it is required."""
    evidence_max_age_s: int = 90 * 86400
    """Evidence older than this starts nothing new (it ends nothing)."""
    gather_s: int = 60
    """A unit launch is decided when all ranks have reported, or this long after the first."""
    silent_after_s: int = 300
    """A node that was not in contact for this long is silent."""
    outage_percent: float = 50.0
    """Share of the nodes in contact that must be lost at once (at least five) to be one outage."""
    grant_timeout_s: int = 14 * 86400
    """How long a grant may wait for its owner's restart before that is said."""
    adoption_timeout_s: int = 7 * 86400
    """How long an adopted unit may wait for a person's ruling before that is said."""
    second_person: Literal["every_widening", "rollouts"] = "every_widening"
    """What needs a second person: every command that widens, or rollouts alone. Then one approver
    does the others."""
    break_glass_max_s: int = 86400
    """How long one person may widen alone, with a reason, until it is undone."""
    change_timeout_s: int = 7 * 86400
    """How long a change that a person asked for waits for another; then it lapses."""
    bake_lease_s: int | None = None
    """A granted unit that has not baked takes the target without the controller only so long after
    its node's last contact. None: there is no lease."""
    change_limit_units: int = 100
    """Standing overrides that may be changed within `change_window_s`, towards the safe value apart:
    a plan that would change more waits for a person."""
    change_window_s: int = 600
    exposure_limit_units: int | None = None
    """Most units per SM that may run the target: granted, adopted and uncontrolled together."""
    hang_after_s: int = 900
    """A server unhealthy for this long on the target hangs: a fault in service."""
    crash_loop_exits: int = 3
    """Failed exits on the target within a day that are a fault in service."""
    breaker_bad_units: int = 3
    """Distinct units gone bad within `breaker_window_s` that open the breaker."""
    breaker_window_s: int = 3600
    episode_quiet_s: int = 300
    """An alarm closes when its cause was absent for this long."""
    max_units_down: int = 1
    """Units of an SM that may be down at once while one of them is restarted onto the safe value,
    whoever took down the others."""
    min_serving_share: float = 0.5
    """Share of an SM's live units that must serve while one is restarted onto the safe value. With
    one unit down at a time it protects small fleets only: the last server is never restarted."""
    drain_on_failed_build: Literal["ask", "auto"] = "ask"
    """Whether a failed build's running servers are restarted only once a person agrees."""
    drain_timeout_s: int = 3600
    """How long one unit may take from the order until it serves the safe value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """An upstream report that must stop a build. `match` is ANDed over fields, ORed over values."""

    id: str
    title: str
    url: str = ""
    severity: Literal["block", "info"] = "block"
    match: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Some units: a unit is meant if every list that is not empty has it."""

    units: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    kernel_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """One widening step: a number of units, a share of the GPUs of all eligible ones, or named ones.

    Cumulative: who was in an earlier wave counts towards the number and the share.
    """

    count: int | None = None
    percent: float | None = None
    select: Selector | None = None
    """Exactly the units that this takes in, as far as they are eligible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """How far, how fast, and what stops it. Judged by the plan recorded when it was proposed."""

    id: str
    gate: str
    sm: str
    waves: tuple[Wave, ...]
    select: Selector = field(default_factory=Selector)
    """Which units the rollout covers. Empty: all of the SM."""
    spread_by: Literal["none", "rack", "chassis"] = "none"
    """Take the units of a wave from as many of these failure domains as can be."""
    max_in_flight: int = 1
    """Units restarting or baking at once; one that waits for its owner's restart is not in flight."""
    bake_s: int = 1800
    """Reported serving time with traffic that a unit needs on the target."""
    min_sample: int | None = None
    """Units that must have an outcome before a wave can pass or a percentage can fail it. None: all
    members. Less lets a wave pass while some still wait for their owner's restart."""
    success_percent: float = 100.0
    """A wave passes at or above this share of good outcomes."""
    failure_percent: float = 1.0
    """A wave fails at or above this share of bad outcomes, once `min_sample` is reached."""
    failures_max: int = 1
    """A wave fails at this many bad outcomes, whatever the sample."""
    golden: Literal["ignore", "require"] = "ignore"
    """Whether a unit is good only when golden prompts were asked on the target. Required, too many
    wrong answers are a fault in service."""
    golden_mismatches_max: int = 0
    """Wrong answers that a set of golden prompts may have."""
    approvals: int = 1
    """Different people who must agree before it can start. Its author is none of them."""
    freeze_windows: tuple[FreezeWindow, ...] = ()
    """Times in which no wave opens and nothing is granted. They end nothing."""
    supersedes: str | None = None
    """A rollout of the same gate and SM that starting this one ends. Its grants are carried over."""
    on_new_build: Literal["hold", "canary", "trust_pool"] = "canary"
    """Once it completed: what a kernel key it did not run needs. A rollout of its own (`canary`; and
    `hold`, which says that it is not wanted yet), or only to be qualified on the pool."""
    wave_timeout_s: int = 7 * 86400
    rollout_timeout_s: int = 30 * 86400


def share(percent: float, of: int) -> Fraction:
    """This percentage of a number, exactly as it was written: 64.4 % of 250 is 161, not a hair more.

    In binary floating point it is more, and a threshold that is reached would not be.
    """
    return Fraction(str(percent)) * of / 100


def reject(message: str, next_step: str) -> RejectedError:
    """A refusal of what cannot mean what it says."""
    return RejectedError(code="bad_policy", message=message, next_step=next_step)


def validate_gate(gate: Gate) -> None:
    """Refuse a gate that cannot mean what it says.

    Raises:
        RejectedError: `bad_name`, `bad_policy`.
    """
    check_name("gate", gate.id)
    sms = gate.baseline_sms + gate.candidate_sms
    if not sms:
        raise reject("A gate needs an SM.", "Name a candidate, such as 10.7.")
    for sm in sms:
        if not is_sm(sm):
            raise reject(f"SM {sm!r} is not major.minor.", "Write the compute capability: 10.7.")
    if len(set(sms)) != len(sms):
        raise reject("An SM stands twice in the gate.", "Baseline and candidate must not overlap.")
    if not gate.required_checks:
        raise reject(
            "A gate without required checks would qualify anything.", "Name required_checks."
        )
    if gate.weight_format not in WEIGHT_FORMATS:
        raise reject(
            f"No rule knows the weight format {gate.weight_format!r}.",
            f"One of {', '.join(WEIGHT_FORMATS)}.",
        )
    if gate.target in ("", "auto"):
        raise reject("A gate needs a runner as its target.", "Name one, such as flashinfer_mxfp4.")


def is_sm(text: str) -> bool:
    """True for "10.7"; False for a family label, a bare major, or anything else."""
    major, dot, minor = text.partition(".")
    return (
        dot == "."
        and major.isascii()
        and major.isdigit()
        and major[0] != "0"
        and len(major) <= 2  # noqa: PLR2004  two digits of major are all that exist
        and minor.isascii()
        and minor.isdigit()
        and len(minor) == 1
    )


WORDS: Final = {
    "baseline_proof": ("required", "not_required"),
    "drain_on_failed_build": ("ask", "auto"),
    "second_person": ("every_widening", "rollouts"),
}
"""The values of a policy that are words."""


def validate_policy(policy: Policy) -> None:
    """Refuse a policy with a number that would fail open.

    Raises:
        RejectedError: `bad_policy`.
    """
    for item in fields(policy):
        value = getattr(policy, item.name)
        if item.name in WORDS:
            if value not in WORDS[item.name]:
                raise reject(f"{item.name} is {value!r}.", f"Give {' or '.join(WORDS[item.name])}.")
            continue
        if item.name == "min_serving_share":
            if not 0 <= value <= 1:
                raise reject(f"{item.name} is {value}.", "Give a share from 0 to 1, such as 0.9.")
            continue
        if value is None:
            continue
        if item.name == "bake_lease_s" and value < BAKE_LEASE_LEAST_S:
            raise reject(
                f"bake_lease_s is {value}: nodes in contact would lose the target.",
                f"Give at least {BAKE_LEASE_LEAST_S}.",
            )
        if item.name == "outage_percent" and value > 100:  # noqa: PLR2004  a percentage
            raise reject(f"outage_percent is {value}.", "Give above 0, at most 100.")
        least = 0 if item.name in ("exposure_limit_units", "episode_quiet_s", "gather_s") else 1
        if value < least:
            raise reject(f"{item.name} is {value}.", f"Give at least {least}.")


def validate_issue(issue: KnownIssue) -> None:
    """Refuse an issue that matches on unknown fields, or on nothing.

    Raises:
        RejectedError: `bad_name`, `bad_policy`.
    """
    check_name("known issue", issue.id)
    if not issue.match:
        raise reject("A known issue with an empty match would stop everything.", "Name a field.")
    for name, values in issue.match.items():
        if name not in MATCH_FIELDS:
            raise reject(
                f"Known issues cannot match on {name!r}.", f"Use one of {', '.join(MATCH_FIELDS)}."
            )
        if not values:
            raise reject(f"No values for {name!r}.", "List at least one.")
        for value in values:
            if "*" in value[:-1] or value == "*":
                raise reject(
                    f"{value!r}: only a trailing wildcard is allowed.", "Write 0.6.16.* or a value."
                )
            if any(sign in value for sign in "<>=!~^, "):
                raise reject(
                    f"{value!r} is a range or a list, and would match nothing.",
                    "List exact values, or beginnings such as 0.6.16.*.",
                )
            if name in MATCH_FORMS and not re.fullmatch(MATCH_FORMS[name][0], value):
                raise reject(f"{name} {value!r} would match nothing.", MATCH_FORMS[name][1])
