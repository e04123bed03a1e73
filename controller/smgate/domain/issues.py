"""Known issues against a build: equality and trailing wildcards over a closed list of fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from smgate.domain import context, keys
from smgate.domain.context import Member
from smgate.domain.policy import KnownIssue
from smgate.domain.state import Fleet
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedBuild:
    """One build that an issue matches, as far as a person tells builds apart."""

    sm: str
    sglang: str | None
    flashinfer: str | None
    driver: str | None
    kernel_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What an issue matches now, among the units with a live server or launch."""

    units: tuple[str, ...]
    unknown_units: tuple[str, ...]
    """Nobody can tell: a field that the issue names was not read there."""
    builds: dict[MatchedBuild, tuple[str, ...]]
    """Each with its units; the most frequent build first."""


def reach(fleet: Fleet, issue: KnownIssue, *, now_us: int) -> Reach:
    """What this issue matches now, whatever its severity and whether or not it is published."""
    matched: list[str] = []
    unknown: list[str] = []
    builds: dict[MatchedBuild, list[str]] = {}
    for name in sorted(fleet.units):
        unit = fleet.units[name]
        members = context.of_unit(fleet, unit, now_us).members if unit.live else ()
        verdicts = [(matches(issue, member), member) for member in members]
        found = {_build_of(member) for verdict, member in verdicts if verdict == "yes"}
        if found:
            matched.append(name)
        elif any(verdict == "unknown" for verdict, _ in verdicts):
            unknown.append(name)
        for build in sorted(found, key=repr):
            builds.setdefault(build, []).append(name)
    most = sorted(builds, key=lambda build: (-len(builds[build]), repr(build)))
    return Reach(
        units=tuple(matched),
        unknown_units=tuple(unknown),
        builds={build: tuple(builds[build]) for build in most},
    )


def _build_of(member: Member) -> MatchedBuild:
    assert member.rank is not None, "an issue matches only what a launch gate read"
    build = member.rank.planned.build
    return MatchedBuild(
        sm=", ".join(sm for sm in member.sms if sm is not None),
        sglang=build.sglang_version,
        flashinfer=build.flashinfer_version,
        driver=build.driver_version,
        kernel_key=member.kernel_key,
    )
