"""A fleet that watches what the controller records: what must hold in every history, as it happens."""

from __future__ import annotations

from tests import given

from smgate.domain import (
    commands,
    decisions,
    drain_budget,
    errors,
    exposure,
    outcome,
    policy,
    readings,
    windows,
)
from smgate.scenario import invariants

ENDS = {
    "pinned_off",
    "self_test_failed",
    "rolled_back_here",
    "build_failed",
    "unit_disagreed_here",
    "fault_in_service",
}
"""All that may ever end a grant. No freeze, breaker, pause, halt, abort, completion or silence."""

NIGHT = windows.FreezeWindow(days=windows.DAYS, starts="22:14", ends="23:20")
PLANS = {
    "all": policy.RolloutPlan(
        id="", gate=given.GATE, sm="10.7", waves=(policy.Wave(percent=100),), max_in_flight=100
    ),
    "careful": policy.RolloutPlan(
        id="",
        gate=given.GATE,
        sm="10.7",
        waves=(policy.Wave(count=1), policy.Wave(percent=50), policy.Wave(percent=100)),
        min_sample=1,
        bake_s=60,
    ),
    "tolerant": policy.RolloutPlan(
        id="",
        gate=given.GATE,
        sm="10.7",
        waves=(policy.Wave(count=2), policy.Wave(percent=100)),
        failures_max=9,
        failure_percent=90,
        success_percent=10,
        bake_s=60,
        max_in_flight=2,
    ),
    "rested": policy.RolloutPlan(
        id="",
        gate=given.GATE,
        sm="10.7",
        waves=(policy.Wave(select=policy.Selector(units=("a", "b"))), policy.Wave(percent=100)),
        bake_s=60,
        golden="require",
        freeze_windows=(NIGHT,),
    ),
}

ALONE = {
    "enforce": commands.SetGateMode(gate=given.GATE, sm="10.7", mode="enforce", reason=""),
    "enable": commands.EnableGate(gate=given.GATE, reason=""),
    "gather": commands.PublishPolicy(
        policy=policy.Policy(min_gpu_sets=2, breaker_bad_units=2, gather_s=30), reason=""
    ),
    "lift": commands.LiftFreeze(id="f", reason=""),
    "reset": commands.ResetBreaker(reason=""),
    "start": commands.StartRollout(rollout="r1", reason=""),
    "resume": commands.ResumeRollout(rollout="r1", reason=""),
    "include": commands.IncludeUnit(unit="", reason=""),
    "unpin": commands.UnpinUnit(unit="", reason=""),
    "accept": commands.AcceptUnit(unit="", reason=""),
    "release": commands.ReleaseUnit(unit="", reason=""),
    "pin": commands.PinUnit(unit="", direction="on", reason=""),
}
GLASS_ENDS = ("accepted", "withdrawn", "undone")
"""What one person may widen alone, and how that may end."""


class Watched(given.Fleet):
    """The fleet of the given language, with the invariants checked at every event."""

    def __init__(self, **numbers):
        self.told_launch: dict[str, tuple[str, str | None]] = {}
        super().__init__(**numbers)

    def record(self, event, actor, **where):
        for name, wrong in invariants.of_event(self.state, event):
            assert wrong is None, f"{name}: {wrong}"
        if isinstance(event, decisions.Granted):
            self._may_start(event)
        if isinstance(event, decisions.WaveOpened | decisions.WaveJoined):
            assert not self.state.freezes
            assert self.state.breaker_position is None
            assert self.state.rollouts[event.rollout].phase == "running"
        if isinstance(event, decisions.GrantEnded):
            assert event.code in ENDS
        if isinstance(event, decisions.OverrideSet):
            self._may_be_told(event)
        if isinstance(event, decisions.DrainOrdered):
            self._may_be_restarted(event)
        return super().record(event, actor, **where)

    def _may_start(self, event):
        """Nothing starts while anything stands against it, as the log has it at this moment."""
        fleet, unit = self.state, self.state.units[event.unit]
        assert not fleet.freezes
        assert fleet.breaker_position is None
        assert event.kernel_keys
        assert all(fleet.keys[key].standing == "qualified" for key in event.kernel_keys)
        assert unit.adoption != "adopted"
        assert not unit.excluded
        assert not unit.released
        rollout = fleet.rollouts.get(event.rollout or "")
        if event.code == "granted":
            assert rollout is not None
            assert rollout.phase == "running"
            assert any(event.unit in wave.units for wave in rollout.waves)
        else:
            assert event.code == "standing"
            assert any(one.phase == "completed" for one in fleet.rollouts.values())
        for rank in unit.known_ranks.values():
            node = fleet.nodes[rank.node]
            assert not node.silent
            assert not node.gaps
            assert fleet.mode_of(given.GATE, fleet.sm_of(rank.gpu_uuids[0]) or "") == "enforce"
            for key in event.kernel_keys:
                assert not any((uuid, key) in fleet.gpu_memory for uuid in rank.gpu_uuids)

    def _may_be_told(self, event):
        """One value for all ranks of a launch, and none that its SGLang would die of."""
        unit = self.state.units[event.unit]
        late = is_late_copy(self.state, event)
        for launch_id in event.launch_ids:
            said = self.told_launch.setdefault(launch_id, (event.form, event.value))
            assert said == (event.form, event.value), "the ranks of one launch were split"
        if event.value is None or late:
            return
        ranks = {**unit.known_ranks, **(unit.launch.ranks if unit.launch else {})}
        assert ranks
        for rank in ranks.values():
            sms = {self.state.sm_of(uuid) for uuid in rank.gpu_uuids}
            for sm in sms:
                assert sm is not None
                refusal = outcome.raises(
                    runner=event.value,
                    a2a=readings.rank_a2a(rank),
                    sm=sm,
                    sglang_version=rank.planned.build.sglang_version or "",
                    torch_cuda=readings.torch_cuda(rank.planned.build) or "13.0",
                )
                assert refusal is None
                if event.value == given.TARGET:
                    assert sm in ("10.0", "10.3", "10.7")
                    assert len(sms) == 1
        if event.value == given.TARGET and event.form == "append":
            glass = unit.pin is not None and unit.pin.break_glass
            pinned = unit.pin is not None and unit.pin.direction == "on"
            if event.given_for.sm == "10.7":
                assert pinned or readings.grant_in_force(self.state, unit) is not None
            for rank in ranks.values():
                key = readings.rank_key(self.state, rank)
                failed = [u for u in rank.gpu_uuids if (u, key) in self.state.gpu_memory]
                assert glass or not failed, "a key that failed here was offered again"

    def _may_be_restarted(self, event):
        """Only onto the safe value, only off the target, whole, and never more than the budget."""
        fleet, unit = self.state, self.state.units[event.unit]
        assert event.unit not in fleet.drains
        assert (unit.override.form, unit.override.value) == ("append", given.SAFE)
        assert any(readings.on_target(fleet, one) for one in unit.live_instances())
        assert event.launch_ids == unit.launch.launch_ids
        assert not any(fleet.nodes[node].silent for node in event.nodes)
        assert {rank.node for rank in unit.launch.ranks.values()} <= set(event.nodes)
        sm = exposure.unit_sm(fleet, unit)
        ordered = [u for u in fleet.drains if exposure.unit_sm(fleet, fleet.units[u]) == sm]
        assert len(ordered) < fleet.policy.max_units_down
        if not drain_budget.serves(fleet, unit):
            return
        live = [
            one
            for one in fleet.units.values()
            if one.live and not one.excluded and not one.released
            if exposure.unit_sm(fleet, one) == sm
            if any(readings.target_of(fleet, i) == given.TARGET for i in one.instances.values())
        ]
        down = [u for u in live if u.id in ordered or not drain_budget.serves(fleet, u)]
        assert len(down) < fleet.policy.max_units_down
        assert len(live) - len(down) - 1 >= fleet.policy.min_serving_share * len(live)

    def tries_alone(self, command, **how):
        """The same of one person, who has nobody to accept it."""
        try:
            return self.alone(command, **how)
        except errors.RejectedError:
            return None

    def tries(self, command, **who):
        """A command that may be refused, as people's are."""
        try:
            return self.orders(command, **who)
        except errors.RejectedError:
            return None

    def standing_overrides(self):
        """What every live unit is told, where its launch is decided."""
        return {
            unit.id: (unit.override.form, unit.override.value)
            for unit in self.state.units.values()
            if unit.live
            and unit.override is not None
            and (unit.launch is None or unit.launch.decided is not None)
        }

    def standing_grants(self):
        """Every grant that stands."""
        return {
            (unit.id, grant.kernel_keys)
            for unit in self.state.units.values()
            for grant in unit.grants
        }


def is_late_copy(fleet, event):
    """True for the copy of a decision that a rank gets which came after it.

    Recognised by its launch ids: an `override_set` that names launches is a launch's first
    decision, unless the launch was decided before; standing decisions name none.
    """
    launch = fleet.units[event.unit].launch
    return bool(event.launch_ids) and launch is not None and launch.decided is not None
