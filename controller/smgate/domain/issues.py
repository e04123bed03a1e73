"""Known issues against a build: equality and trailing wildcards over a closed list of fields."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from smgate.domain import context, keys, matching
from smgate.domain.context import Member
from smgate.domain.policy import KnownIssue
from smgate.domain.state import Fleet
from smgate.domain.values import Build

_OF_BUILD: Final[Callable[[Build], tuple[Any, ...]]] = operator.attrgetter(
    "sglang_version",
    "flashinfer_version",
    "flashinfer_commit",
    "driver_version",
    "cuda_toolkit",
    "torch_version",
    "torch_cuda",
    "cute_dsl_version",
    "disqualifying_env",
)


def reading_of(member: Member) -> matching.Reading | None:
    """A member's values for every field an issue may name; None of a server without a launch gate."""
    return None if member.rank is None else _reading(member, member.rank.planned.build)


def _reading(member: Member, build: Build) -> matching.Reading:
    sms = tuple(sm for sm in member.sms if sm is not None)
    branch = keys.driver_branch(build.driver_version)
    return (
        sms or None,
        _one(build.sglang_version),
        _one(build.flashinfer_version),
        _one(build.flashinfer_commit),
        _one(build.driver_version),
        _one(branch),
        _one(build.cuda_toolkit),
        _one(build.torch_version),
        _one(build.torch_cuda),
        _one(build.cute_dsl_version),
        _one(member.architecture),
        (member.a2a,),
        build.disqualifying_env,
    )


def _one(value: str | None) -> matching.Values:
    return None if value is None else (value,)


def matches(issue: KnownIssue, member: Member) -> matching.Match:
    """Whether one issue holds for a member. `unknown`: a field it names was not read."""
    reading = reading_of(member)
    return "unknown" if reading is None else matching.verdict(issue, reading)


def blocking(fleet: Fleet, member: Member) -> matching.Verdicts:
    """What every published issue that blocks says of a member."""
    if member.rank is None:
        return matching.Verdicts(
            matching=(), unknown=tuple(issue.id for issue in fleet.blocking.issues)
        )
    # All that a reading is made of. The reading itself is made only of one not seen before.
    build = member.rank.planned.build
    read = (member.sms, member.architecture, member.a2a, _OF_BUILD(build))
    return fleet.blocking.verdicts(read, lambda: _reading(member, build))


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
