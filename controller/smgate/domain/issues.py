"""Known issues against a build: equality and trailing wildcards over a closed list of fields."""

from __future__ import annotations

from typing import Literal

from smgate.domain import keys
from smgate.domain.context import Member
from smgate.domain.policy import KnownIssue

Match = Literal["yes", "no", "unknown"]


def field_values(member: Member) -> dict[str, tuple[str, ...] | None]:
    """A member's values for every field an issue may name; None where nothing was read."""
    rank = member.rank
    if rank is None:
        return {}
    build = rank.planned.build

    def one(value: str | None) -> tuple[str, ...] | None:
        return None if value is None else (value,)

    sms = tuple(sm for sm in member.sms if sm is not None)
    return {
        "sm": sms or None,
        "sglang": one(build.sglang_version),
        "flashinfer": one(build.flashinfer_version),
        "flashinfer_commit": one(build.flashinfer_commit),
        "driver": one(build.driver_version),
        "driver_branch": one(keys.driver_branch(build.driver_version)),
        "cuda_toolkit": one(build.cuda_toolkit),
        "torch": one(build.torch_version),
        "torch_cuda": one(build.torch_cuda),
        "cute_dsl": one(build.cute_dsl_version),
        "architecture": one(member.architecture),
        "a2a": (member.a2a,),
        "disqualifying_env": build.disqualifying_env,
    }


def fits(pattern: str, value: str) -> bool:
    """Equality, or a prefix when the pattern ends in an asterisk."""
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return value == pattern


def matches(issue: KnownIssue, member: Member) -> Match:
    """Whether an issue holds for a member. `unknown`: a field it names was not read."""
    values = field_values(member)
    verdict: Match = "yes"
    for name, patterns in issue.match.items():
        known = values.get(name)
        if known is None:
            verdict = "unknown"
        elif not any(fits(pattern, value) for pattern in patterns for value in known):
            return "no"
    return verdict
