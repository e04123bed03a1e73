"""What a rule looks at: one unit, its members, its gate. Read off the state once per decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from smgate.domain import outcome, readings
from smgate.domain.policy import Gate
from smgate.domain.state import Fleet, Instance, Rank, Unit
from smgate.domain.values import GivenFor, Model

Kind = Literal["untouched", "keep", "safe", "target"]

CAREFULNESS: Final[tuple[Kind, ...]] = ("untouched", "keep", "safe", "target")
"""The most careful first: hands off, and of its two forms the one that appends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
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
        gates = self.fleet.gates.values()
        return any(sm in gate.candidate_sms for gate in gates for sm in self.sms)

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


def _in_order(sms: set[str | None]) -> tuple[str | None, ...]:
    return tuple(sms) if len(sms) == 1 else tuple(sorted(sms, key=str))


def _ranked(fleet: Fleet, rank: Rank, instance: Instance | None) -> Member:
    model = fleet.model_of(rank.planned)
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
        sms=_in_order(set(map(fleet.gpu_sms.get, rank.gpu_uuids))),
        model=model,
        architecture=model.architecture if model else None,
        a2a=a2a,
        kernel_key=readings.rank_key(fleet, rank),
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


def of_unit(fleet: Fleet, unit: Unit, now_us: int) -> Context:
    """Read one unit off the state.

    Members are the ranks of the current launch; for a rank that has not reported it yet, its last
    reading; and live servers on the unit's GPUs that came without a launch gate.
    """
    members: list[Member] = []
    live = unit.live_instances()
    if unit.launch is not None:
        by_launch = {i.launch_id: i for i in live if i.launch_id is not None}
        ranks = unit.ranks
        for number in sorted(ranks):
            rank = ranks[number]
            node = fleet.nodes.get(rank.node)
            if number not in unit.launch.ranks and node is not None and node.retired:
                continue  # a retired machine that is no rank of this launch is no member
            members.append(_ranked(fleet, rank, by_launch.get(rank.planned.launch_id)))
    read = next((m.architecture for m in members if m.architecture is not None), None)
    members.extend(
        _ungated(fleet, instance, read)
        for instance in live
        if instance.launch_id is None or instance.launch_id not in fleet.launch_units
    )
    architectures = [m.architecture for m in members if m.architecture is not None]
    keys = {m.kernel_key for m in members}
    known = [key for key in keys if key is not None]
    return Context(
        fleet=fleet,
        unit=unit,
        members=tuple(members),
        gate=next((g for g in map(fleet.gate_of, architectures) if g is not None), None),
        now_us=now_us,
        sms=tuple(sorted({sm for m in members for sm in m.sms if sm is not None})),
        kernel_keys=tuple(sorted(known)) if known and len(known) == len(keys) else None,
    )
