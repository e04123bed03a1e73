"""Event <-> (stored name, schema version, canonical JSON bytes).

Stored names are literals and are only ever added to; a class may move or be renamed freely. What is
stored is never rewritten: an older version of an event is brought up when it is read.
`tests/golden/events` holds one file per (name, version) ever written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from smgate.domain import decisions, facts, redaction, revocation, rulings
from smgate.domain.events import Event, Recorded
from smgate.log import sharing
from smgate.log.port import StoredRecord

NAMES: Final[dict[str, type]] = {
    "node_reported": facts.NodeReported,
    "launch_planned": facts.LaunchPlanned,
    "check_finished": facts.CheckFinished,
    "instance_changed": facts.InstanceChanged,
    "effective_seen": facts.EffectiveSeen,
    "weights_seen": facts.WeightsSeen,
    "memory_fallback_seen": facts.MemoryFallbackSeen,
    "memory_fallback_cleared": facts.MemoryFallbackCleared,
    "gpu_fault_seen": facts.GpuFaultSeen,
    "bake_interval": facts.BakeInterval,
    "override_applied": facts.OverrideApplied,
    "gap_noticed": facts.GapNoticed,
    "drain_hook_ended": facts.DrainHookEnded,
    "golden_finished": facts.GoldenFinished,
    "directive_held": facts.DirectiveHeld,
    "node_enrolled": rulings.NodeEnrolled,
    "node_retired": rulings.NodeRetired,
    "fleet_expected": rulings.FleetExpected,
    "fact_redacted": redaction.FactRedacted,
    "restore_finished": rulings.RestoreFinished,
    "gate_published": rulings.GatePublished,
    "gate_mode_set": rulings.GateModeSet,
    "gate_disabled": rulings.GateDisabled,
    "gate_enabled": rulings.GateEnabled,
    "gate_graduated": rulings.GateGraduated,
    "policy_published": rulings.PolicyPublished,
    "issue_published": rulings.IssuePublished,
    "issue_withdrawn": rulings.IssueWithdrawn,
    "build_announced": rulings.BuildAnnounced,
    "check_ruled": rulings.CheckRuled,
    "build_accepted": rulings.BuildAccepted,
    "unit_excluded": rulings.UnitExcluded,
    "unit_included": rulings.UnitIncluded,
    "pin_set": rulings.PinSet,
    "pin_removed": rulings.PinRemoved,
    "flag_adopted": rulings.FlagAdopted,
    "memory_cleared": rulings.MemoryCleared,
    "adoption_decided": rulings.AdoptionDecided,
    "override_released": rulings.OverrideReleased,
    "freeze_declared": rulings.FreezeDeclared,
    "freeze_lifted": rulings.FreezeLifted,
    "breaker_reset": rulings.BreakerReset,
    "rollout_proposed": rulings.RolloutProposed,
    "rollout_approved": rulings.RolloutApproved,
    "rollout_started": rulings.RolloutStarted,
    "rollout_paused": rulings.RolloutPaused,
    "rollout_resumed": rulings.RolloutResumed,
    "rollout_halted": rulings.RolloutHalted,
    "rollout_aborted": rulings.RolloutAborted,
    "grant_revoked": revocation.GrantRevoked,
    "change_asked": rulings.ChangeAsked,
    "change_accepted": rulings.ChangeAccepted,
    "change_withdrawn": rulings.ChangeWithdrawn,
    "break_glass_used": rulings.BreakGlassUsed,
    "leadership_taken": decisions.LeadershipTaken,
    "log_restored": decisions.LogRestored,
    "opening_recorded": decisions.OpeningRecorded,
    "rules_changed": decisions.RulesChanged,
    "node_went_silent": decisions.NodeWentSilent,
    "node_returned": decisions.NodeReturned,
    "fleet_unreachable": decisions.FleetUnreachable,
    "fleet_reachable": decisions.FleetReachable,
    "self_test_wanted": decisions.SelfTestWanted,
    "build_qualified": decisions.BuildQualified,
    "build_suspected": decisions.BuildSuspected,
    "build_failed": decisions.BuildFailed,
    "build_cleared": decisions.BuildCleared,
    "granted": decisions.Granted,
    "grant_ended": decisions.GrantEnded,
    "wave_opened": decisions.WaveOpened,
    "wave_joined": decisions.WaveJoined,
    "wave_judged": decisions.WaveJudged,
    "rollout_completed": decisions.RolloutCompleted,
    "override_set": decisions.OverrideSet,
    "breaker_tripped": decisions.BreakerTripped,
    "episode_opened": decisions.EpisodeOpened,
    "episode_updated": decisions.EpisodeUpdated,
    "episode_closed": decisions.EpisodeClosed,
    "wait_timed_out": decisions.WaitTimedOut,
    "adopted": decisions.Adopted,
    "unit_disagreed": decisions.UnitDisagreed,
    "target_faulted": decisions.TargetFaulted,
    "change_held": decisions.ChangeHeld,
    "drain_ordered": decisions.DrainOrdered,
    "drain_finished": decisions.DrainFinished,
    "drain_failed": decisions.DrainFailed,
}

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""From the plain values of one schema version to those of the next. Pure; it may change its argument."""

UPCASTERS: Final[Mapping[tuple[str, int], Upcaster]] = {}
"""By stored name and the version that is brought up. A field with a default needs none."""

_NAME_OF: Final[dict[type, str]] = {kind: name for name, kind in NAMES.items()}


class UnknownEventError(Exception):
    """The log holds an event this release cannot read: a newer one wrote it, or it is damaged."""

    code = "event_unknown"
    next_step = (
        "Run the release that wrote it. If that is this one, `smgate log verify` says which row was "
        "changed."
    )

    @property
    def sentence(self) -> str:
        """What is wrong."""
        return f"The log cannot be read: {self}"


class Reader:
    """Reads events of these names, of every version that the upcasters know."""

    def __init__(
        self, names: Mapping[str, type], upcasters: Mapping[tuple[str, int], Upcaster]
    ) -> None:
        self._decoders: Final = {name: sharing.decoder(kind) for name, kind in names.items()}
        self._upcasters: Final = dict(upcasters)
        self.newest: Final = dict.fromkeys(names, 1)
        """The version of each event that is written: the one its class has the fields of."""
        for name, version in sorted(upcasters):
            assert self.newest.get(name) == version, f"{name}: no upcaster is left out"
            self.newest[name] = version + 1
        self._of_newest: Final = {
            (name, self.newest[name]): decode for name, decode in self._decoders.items()
        }

    def decode(self, name: str, schema_version: int, data: bytes) -> Any:  # noqa: ANN401  any event
        """Read one event.

        Raises:
            UnknownEventError: name or version unknown, or the payload does not fit; names it.
        """
        newest = self.newest.get(name)
        if newest is None or not 1 <= schema_version <= newest:
            raise UnknownEventError(
                f"Event {name!r} version {schema_version} is unknown to this release; "
                "read this log with the release that wrote it."
            )
        if schema_version < newest:
            data = self._brought_up(name, schema_version, data)
        try:
            return self._decoders[name](data)
        except msgspec.DecodeError as exc:
            raise UnknownEventError(f"Event {name!r} version {schema_version}: {exc}") from exc

    def page(self, records: Iterable[StoredRecord]) -> list[Recorded]:
        """Stored records as the domain sees them, in their order.

        Raises:
            UnknownEventError: as `decode`, of the first that cannot be read.
        """
        decoders, new, erased = self._of_newest, tuple.__new__, redaction.ERASED
        found = []
        for position, stream, version, name, form, occurred_us, at_us, actor, _, data, _ in records:
            try:
                event = decoders[name, form](data) if data else erased
            except (KeyError, msgspec.DecodeError):
                event = self.decode(
                    name, form, data
                )  # Of an older version; or it says what is wrong.
            # The class's own `__new__` is Python, and takes as long again.
            place = (position, at_us, occurred_us, stream, version, actor, event)
            found.append(new(Recorded, place))
        return found

    def _brought_up(self, name: str, schema_version: int, data: bytes) -> bytes:
        try:
            plain = msgspec.json.decode(data, type=dict[str, Any])
            for version in range(schema_version, self.newest[name]):
                plain = self._upcasters[name, version](plain)
        except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as exc:
            sentence = f"Event {name!r} version {schema_version} cannot be brought up: {exc!r}"
            raise UnknownEventError(sentence) from exc
        return msgspec.json.encode(plain, order="sorted")


_READER: Final = Reader(NAMES, UPCASTERS)


def name_of(event: Event) -> str:
    """Stored name of an event."""
    return _NAME_OF[type(event)]


def version_of(event: Event) -> int:
    """Schema version in which an event is stored."""
    return _READER.newest[_NAME_OF[type(event)]]


def encode(event: Event) -> bytes:
    """Canonical JSON: sorted keys, no spaces. Equal event, equal bytes."""
    return msgspec.json.encode(event, order="sorted")


def decode(name: str, schema_version: int, data: bytes) -> Event:
    """Read one event back.

    Raises:
        UnknownEventError: name or version unknown, or the payload does not fit; names it.
    """
    event: Event = _READER.decode(name, schema_version, data)
    return event


def recorded(record: StoredRecord) -> Recorded:
    """A stored record as the domain sees it."""
    return page((record,))[0]


def page(records: Iterable[StoredRecord]) -> list[Recorded]:
    """As `Reader.page`, of this release's events."""
    return _READER.page(records)
