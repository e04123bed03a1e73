"""Known issues against a build: equality and trailing wildcards over a closed list of fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from smgate.domain import keys
from smgate.domain.context import Member
from smgate.domain.policy import KnownIssue
from smgate.domain.values import Build

Match = Literal["yes", "no", "unknown"]


Values = tuple[str, ...] | None
Reader = Callable[[Member, Build], Values]


def _one(value: str | None) -> Values:
    return None if value is None else (value,)


READERS: Final[dict[str, Reader]] = {
    "sm": lambda member, _: tuple(sm for sm in member.sms if sm is not None) or None,
    "sglang": lambda _, build: _one(build.sglang_version),
    "flashinfer": lambda _, build: _one(build.flashinfer_version),
    "flashinfer_commit": lambda _, build: _one(build.flashinfer_commit),
    "driver": lambda _, build: _one(build.driver_version),
    "driver_branch": lambda _, build: _one(keys.driver_branch(build.driver_version)),
    "cuda_toolkit": lambda _, build: _one(build.cuda_toolkit),
    "torch": lambda _, build: _one(build.torch_version),
    "torch_cuda": lambda _, build: _one(build.torch_cuda),
    "cute_dsl": lambda _, build: _one(build.cute_dsl_version),
    "architecture": lambda member, _: _one(member.architecture),
    "a2a": lambda member, _: (member.a2a,),
    "disqualifying_env": lambda _, build: build.disqualifying_env,
}
"""A member's values for every field an issue may name; None where nothing was read."""


def field_values(member: Member) -> dict[str, Values]:
    """All of them; none of a server that came without a launch gate."""
    if member.rank is None:
        return {}
    build = member.rank.planned.build
    return {name: read(member, build) for name, read in READERS.items()}


def fits(pattern: str, value: str) -> bool:
    """Equality, or a prefix when the pattern ends in an asterisk."""
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return value == pattern


def matches(issue: KnownIssue, member: Member) -> Match:
    """Whether an issue holds for a member. `unknown`: a field it names was not read.

    Only the fields it names are read, and no more once one says no: this runs for every issue and
    every unit of the fleet.
    """
    if member.rank is None:
        return "unknown"
    build = member.rank.planned.build
    verdict: Match = "yes"
    for name, patterns in issue.match.items():
        read = READERS.get(name)
        known = None if read is None else read(member, build)
        if known is None:
            verdict = "unknown"
        elif not any(fits(pattern, value) for pattern in patterns for value in known):
            return "no"
    return verdict
