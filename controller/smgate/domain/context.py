"""What a rule looks at: one unit, its members, its gate. Read off the state once per decision.

These are named tuples, which are made in half the time of a frozen dataclass: a plan makes some for
every unit it looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from smgate.domain import outcome, readings
from smgate.domain.policy import Gate
from smgate.domain.state import Fleet, Rank, Unit
from smgate.domain.state_guard import Held
from smgate.domain.state_nodes import Instance
from smgate.domain.values import GivenFor, Model

Kind = Literal["untouched", "keep", "safe", "target"]

CAREFULNESS: Final[tuple[Kind, ...]] = ("untouched", "keep", "safe", "target")
"""The most careful first: hands off, and of its two forms the one that appends nothing."""


class Answer(NamedTuple):
    """What one rule says of one member, and the log positions it rests on."""

    kind: Kind
    code: str
    sentence: str
    facts: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    starts: bool = False
    """True when this is a new start, which needs a grant to be recorded."""

    @property
    def carefulness(self) -> int:
        """Its place in `CAREFULNESS`: the lower, the more careful."""
        return CAREFULNESS.index(self.kind)


class Member(NamedTuple):
    """One rank of the unit: what its launch gate read, or a server that came without one."""

    node: str
    rank: Rank | None
    instance: Instance | None
    gpu_uuids: tuple[str, ...]
    sms: tuple[str | None, ...]
    model: Model | None
    architecture: str | None
    a2a: str
    kernel_key: str | None
    position: int


class Context(NamedTuple):
    """Everything a rule needs. `gate` is None when no gate covers the model."""

    fleet: Fleet
    unit: Unit
    members: tuple[Member, ...]
    gate: Gate | None
    now_us: int
    sms: tuple[str, ...]
    """The known SMs of all GPUs of the unit, each once."""
    kernel_keys: tuple[str, ...] | None
    """The members' keys, each once; None if any is unknown or there is no member."""
    held: Held | None = None
    """A change of this unit that waits for a person."""

    @property
    def sm(self) -> str | None:
        """The one SM of the unit; None if unknown or mixed."""
        return self.sms[0] if len(self.sms) == 1 else None

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """All GPUs of the unit."""
        return tuple(sorted({uuid for m in self.members for uuid in m.gpu_uuids}))

    @property
    def candidate(self) -> bool:
        """True if any GPU of the unit is of an SM the gate is about."""
        return not self.fleet.candidate_sms.isdisjoint(self.sms)

    @property
    def given_for(self) -> GivenFor:
        """What the decision is made for: the leading member's reading."""
        for member in self.members:
            if member.rank is not None:
                return GivenFor(
                    architecture=member.architecture,
                    model_digest=member.model.digest if member.model else None,
                    a2a=readings.rank_a2a(member.rank),
                    sm=member.sms[0] if len(member.sms) == 1 else None,
                    kernel_key=member.kernel_key,
                )
        return GivenFor(sm=self.sm)

    def safe_value(self) -> str | None:
        """The safe runner that every member can start with; None if there is none."""
        values = set()
        for member in self.members:
            if member.rank is None or member.rank.planned.draft_asserts_auto or not member.sms:
                return None
            build = member.rank.planned.build
            for sm in member.sms:
                values.add(
                    None
                    if sm is None
                    else outcome.safe_value(
                        sm=sm,
                        a2a=member.a2a,
                        sglang_version=build.sglang_version or "",
                        # Unread is not old: an old one is rare, a wrong refusal is a BF16 server.
                        torch_cuda=readings.torch_cuda(build) or "13.0",
                    )
                )
        return values.pop() if len(values) == 1 else None

    def raises(self, runner: str) -> bool:
        """True if SGLang would die with this runner on any member, or nobody ever ran the case."""
        for member in self.members:
            if member.rank is None or not member.sms or None in member.sms:
                return True
            build = member.rank.planned.build
            refusal = outcome.raises(
                runner=runner,
                a2a=member.a2a,
                sm=str(member.sms[0]),
                sglang_version=build.sglang_version or "",
                torch_cuda=readings.torch_cuda(build),
            )
            if refusal is not None:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Passed:
    """One way in which a rule does not apply, with the sentence that says what it looked at.

    A rule returns it where it goes on, so what `why` says of a rule comes from the rule's own way
    out; `walk.said` fills in the names when somebody asks.
    """

    sentence: str


Ask = Callable[[Context, Member], Answer | Passed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table: where it stands, the codes it may answer with, and its question."""

    part: str
    number: int
    codes: tuple[str, ...]
    ask: Ask


NO_GATE: Final = Passed("No gate covers this model, so it is not asked.")


def _ranked(fleet: Fleet, rank: Rank, instance: Instance | None) -> Member:
    model = fleet.model_of(rank.planned)
    sms = readings.rank_sms(fleet, rank)
    # Asked or resolved: one that is not `none` is enough to have no value for it.
    a2a = readings.rank_a2a(rank)
    if a2a == "none":
        a2a = rank.planned.asked_a2a or "none"
    if a2a == "none" and instance is not None and instance.effective is not None:
        a2a = instance.effective.a2a
    return Member(
        node=rank.node,
        rank=rank,
        instance=instance,
        gpu_uuids=rank.gpu_uuids,
        sms=sms,
        model=model,
        architecture=model.architecture if model else None,
        a2a=a2a,
        kernel_key=readings.key_on(rank, sms),
        position=rank.position,
    )


def _ungated(fleet: Fleet, instance: Instance, architecture: str | None) -> Member:
    """A rank without a launch gate: the model is the one that the gates of other ranks read."""
    sm = readings.instance_sm(fleet, instance)
    return Member(
        node=instance.node,
        rank=None,
        instance=instance,
        gpu_uuids=instance.gpu_uuids,
        sms=() if sm is None else (sm,),
        model=None,
        architecture=instance.architecture or architecture,
        a2a=instance.effective.a2a if instance.effective else "none",
        kernel_key=None,
        position=instance.position,
    )


def _replaced(unit: Unit, instance: Instance) -> bool:
    """True of a server whose node has launched anew since: the gate runs once its GPUs are empty.

    Its exit may be told later, and the new launch must not be taken for one without a gate.
    """
    launched = unit.launch.ranks.values() if unit.launch is not None else ()
    return any(r.node == instance.node and r.position > instance.position for r in launched)


def of_unit(fleet: Fleet, unit: Unit, now_us: int) -> Context:
    """Read one unit off the state.

    Members are the ranks of the current launch; for a rank that has not reported it yet, its last
    reading; and live servers on the unit's GPUs that came without a launch gate. A server that names a
    launch came through one, also if that launch is unknown: it was lost with a log, or is to come.
    """
    members: list[Member] = []
    live = unit.live_instances()
    if unit.launch is not None:
        by_launch = {i.launch_id: i for i in live if i.launch_id is not None}
        for number, rank in sorted(unit.ranks.items()):
            node = fleet.nodes.get(rank.node)
            if number not in unit.launch.ranks and node is not None and node.retired:
                continue  # a retired machine that is no rank of this launch is no member
            members.append(_ranked(fleet, rank, by_launch.get(rank.planned.launch_id)))
    read = next((m.architecture for m in members if m.architecture is not None), None)
    members.extend(
        _ungated(fleet, instance, read)
        for instance in live
        if instance.launch_id is None and not _replaced(unit, instance)
    )
    sms: set[str | None] = set()
    keys: set[str | None] = set()
    gate = None
    for member in members:
        sms.update(member.sms)
        keys.add(member.kernel_key)
        gate = gate or fleet.gate_of(member.architecture)
    return Context(
        fleet=fleet,
        unit=unit,
        members=tuple(members),
        gate=gate,
        now_us=now_us,
        sms=_sorted(sms),
        kernel_keys=_sorted(keys) if keys and None not in keys else None,
        held=fleet.guard.held.get(unit.id),
    )


def _sorted(found: set[str | None]) -> tuple[str, ...]:
    """Those that are known, in their order."""
    return tuple(sorted(one for one in found if one is not None))
