"""Random histories by the real commands and facts: what must hold whatever happens."""

from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests import given
from tests.property import histories, watched
from tests.property.machine_more import More

from smgate.domain import commands, decisions, facts, planner, policy, rules, values, walk

NODES = ("a", "b", "c")
SMS = {"a": "10.7", "b": "10.7", "c": "10.7", "x": "10.3", "y": "9.0", "z": "8.0"}
BUILDS = {
    "good": given.BUILD,
    "newer": given.build(flashinfer_version="0.7.3"),
    "ahead": given.build(jit_cache_version="0.7.2"),
    "unread": given.build(flashinfer_version=None),
    "old torch": given.build(torch_cuda="12.6"),
    "odd torch": given.build(torch_cuda="nightly"),
    "unknown sglang": given.build(sglang_version="0.5.24"),
}
KEYS = {name: given.key_of(BUILDS[name]) for name in ("good", "newer", "ahead")}
LAUNCHES = {
    "plain": {},
    "explicit": {"asked_runner": "triton", "asked_runner_in": "argv"},
    "target by hand": {"asked_runner": given.TARGET, "asked_runner_in": "argv"},
    "expert parallel": {"asked_a2a": "deepep"},
    "unread argv": {"argv_read": False},
    "unread model": {"model": None},
    "no driver": {"sm": None},
    "draft": {"draft_asserts_auto": True},
    "top level": {"model": given.ONLY_TOP_LEVEL, "model_digest": given.ONLY_TOP_LEVEL.digest},
}

mostly = st.sampled_from([True, True, True, False])
nodes = st.sampled_from([*NODES, *NODES, *SMS])
candidates = st.sampled_from(NODES)
units = st.sampled_from([*SMS, "two"])
builds = st.sampled_from(["good", "good", "good", *BUILDS])
shapes = st.sampled_from(["plain", "plain", "plain", *LAUNCHES])
runners = st.sampled_from([given.TARGET, "marlin", "auto", "triton"])
rollouts = st.sampled_from(["r1", "r2", "r3"])


class Fleet(More):
    """A small fleet: three SM107, one each of SM103, SM90 and SM80, a server over two nodes, a pool."""

    def __init__(self):
        super().__init__()
        self.fleet = watched.Watched(min_gpu_sets=2, breaker_bad_units=2)

    @initialize(enforced=mostly, qualified=mostly, running=mostly)
    def begin(self, enforced, qualified, running):
        for node, sm in SMS.items():
            self.fleet.node(node, sm=sm)
        self.fleet.node("m", "n")
        if enforced:
            for sm in set(SMS.values()):
                self.fleet.enforce(sm)
        if qualified:
            self.fleet.qualified()
        for node in NODES:
            self.fleet.launch(node)
        if running:
            self.fleet.rollout()

    # What nodes do

    @rule(node=nodes, build=builds, shape=shapes)
    def launch(self, node, build, shape):
        changes = {"sm": SMS[node], "build": BUILDS[build], "restarter": "hook", **LAUNCHES[shape]}
        self.fleet.launch(node, **changes)

    @rule(node=candidates, build=builds)
    def restart(self, node, build):
        self.fleet.launch(node, build=BUILDS[build], restarter="hook")
        if self.fleet.unit(node).launch.decided is not None:
            self.fleet.applies(node)
            self.fleet.serves(node, self.fleet.decided(node).value or "auto")

    @rule(rank=st.integers(0, 1), build=builds, shape=shapes)
    def launch_of_several_nodes(self, rank, build, shape):
        changes = {"build": BUILDS[build], "restarter": "hook", **LAUNCHES[shape]}
        self.fleet.launch("mn"[rank], nnodes=2, node_rank=rank, unit_name="two", **changes)

    @rule(rank=st.integers(0, 1), runner=runners)
    def serve_on_several_nodes(self, rank, runner):
        self.fleet.serves("mn"[rank], runner, nnodes=2, node_rank=rank, unit_name="two")

    @rule(node=nodes, runner=runners)
    def serve(self, node, runner):
        self.fleet.serves(node, runner)

    @rule(node=nodes, code=st.sampled_from([None, 0, 1]))
    def leave(self, node, code):
        self.fleet.instance(node, "exited", exit_code=code)

    @rule(node=candidates, seconds=st.sampled_from([30, 60, 600]))
    def bake(self, node, seconds):
        self.fleet.bakes(node, seconds)

    @rule(
        node=st.sampled_from([*NODES, *given.POOL, "m"]),
        build=builds,
        outcome=st.sampled_from(["passed", "passed", "failed", "error", "timeout", "skipped"]),
        check=st.sampled_from(policy.KIMI_K3.required_checks),
        control=st.sampled_from(["caught", "caught", "missed", "not_run"]),
        probe=st.sampled_from("112"),
    )
    def check(self, node, build, outcome, check, control, probe):
        changes = {"negative_control": control, "probe_version": probe}
        self.fleet.check(node, check, outcome, made=BUILDS[build], **changes)

    @rule(probe=st.sampled_from("12"), outcome=st.sampled_from(["passed", "passed", "failed"]))
    def check_on_a_baseline(self, probe, outcome):
        for check in policy.KIMI_K3.required_checks:
            self.fleet.check("x", check, outcome, sm=SMS["x"], probe_version=probe)

    @rule(node=candidates, mismatches=st.sampled_from([0, 0, 1]))
    def answer(self, node, mismatches):
        numbers = {"set_digest": "ab" * 8, "prompts": 8, "mismatches": mismatches}
        self.fleet.says(node, facts.GoldenFinished(instance_id="k3", **numbers))

    @rule(node=candidates)
    def fault(self, node):
        self.fleet.says(node, facts.GpuFaultSeen(gpu_uuid=f"GPU-{node}", xid=79))

    @rule(node=candidates, phase=st.sampled_from(["imminent", "active", "crashed", None]))
    def fallback(self, node, phase):
        if phase is None:
            self.fleet.says(node, facts.MemoryFallbackCleared(instance_id="k3"))
        else:
            self.fleet.says(node, facts.MemoryFallbackSeen(instance_id="k3", phase=phase))

    @precondition(lambda self: self.fleet.state.drains)
    @rule(outcome=st.sampled_from(["succeeded", "failed", "timeout", "interrupted", "no_hook"]))
    def end_a_drain_hook(self, outcome):
        unit, drain = min(self.fleet.state.drains.items())
        ending = facts.DrainHookEnded(order=drain.order, unit=unit, outcome=outcome)
        self.fleet.says(drain.nodes[0], ending)

    @rule(node=candidates, closed=st.booleans())
    def gap(self, node, closed):
        self.fleet.says(node, facts.GapNoticed(lost_outbox_id="box", closed=closed))

    @rule(seconds=st.sampled_from([1, 60, 100, 301, 3600, 8 * 86400]), silent=st.sets(candidates))
    def time_passes(self, seconds, silent):
        self.fleet.later(seconds, silent=silent)

    # What people do

    @rule(
        gate=st.sampled_from(
            [
                commands.SetGateMode(gate=given.GATE, sm="10.7", mode="observe", reason="r"),
                commands.SetGateMode(gate=given.GATE, sm="10.7", mode="enforce", reason="r"),
                commands.DisableGate(gate=given.GATE, reason="r"),
                commands.EnableGate(gate=given.GATE, reason="r"),
                commands.LiftFreeze(id="f", reason="r"),
                commands.ResetBreaker(reason="r"),
                commands.PublishIssue(
                    issue=policy.KnownIssue(id="i", title="t", match={"flashinfer": ("0.7.3",)}),
                    reason="r",
                ),
                commands.WithdrawIssue(issue_id="i", reason="r"),
                commands.PublishPolicy(
                    policy=policy.Policy(min_gpu_sets=2, exposure_limit_units=2), reason="r"
                ),
                commands.PublishPolicy(
                    policy=policy.Policy(min_gpu_sets=2, baseline_proof="required"), reason="r"
                ),
                commands.PublishPolicy(
                    policy=policy.Policy(min_gpu_sets=2, bake_lease_s=600), reason="r"
                ),
                commands.GraduateGate(gate=given.GATE, sm="10.7", reason="r"),
                commands.PublishGate(gate=policy.KIMI_K3, reason="r"),
                commands.PublishPolicy(
                    policy=policy.Policy(min_gpu_sets=2, max_units_down=2, min_serving_share=0.3),
                    reason="r",
                ),
            ]
        )
    )
    def steer_the_fleet(self, gate):
        self.fleet.tries(gate)

    @rule(
        build=builds,
        node=st.sampled_from([*NODES, *given.POOL]),
        ruling=st.sampled_from(["node_fault", "confirmed", "cleared"]),
    )
    def rule_on_a_check(self, build, node, ruling):
        key = KEYS.get(build, given.KEY)
        self.fleet.tries(commands.RuleBuild(kernel_key=key, node=node, ruling=ruling, reason="r"))

    @rule(build=builds, like=builds)
    def accept_a_build(self, build, like):
        key, other = KEYS.get(build, given.KEY), KEYS.get(like, given.KEY)
        self.fleet.tries(commands.AcceptBuild(kernel_key=key, like=other, reason="r"))

    @rule(
        unit=units,
        kind=st.sampled_from(
            [
                commands.ExcludeUnit,
                commands.IncludeUnit,
                commands.UnpinUnit,
                commands.AdoptFlag,
                commands.ClearMemory,
                commands.AcceptUnit,
                commands.TakeBackUnit,
                commands.ReleaseUnit,
            ]
        ),
    )
    def steer_a_unit(self, unit, kind):
        self.fleet.tries(kind(unit=unit, reason="r"))

    @rule(unit=units, pin=st.sampled_from([("on", False), ("on", True), ("off", False)]))
    def pin(self, unit, pin):
        direction, glass = pin
        self.fleet.tries(
            commands.PinUnit(unit=unit, direction=direction, break_glass=glass, reason="r")
        )

    @rule(
        name=rollouts,
        plan=st.sampled_from(sorted(watched.PLANS)),
        spread_by=st.sampled_from(["none", "rack", "chassis"]),
        supersedes=st.none() | rollouts,
        on_new_build=st.sampled_from(["canary", "hold", "trust_pool"]),
    )
    def propose(self, name, plan, **choices):
        plan = replace(watched.PLANS[plan], id=name, **choices)
        self.fleet.tries(commands.ProposeRollout(plan=plan, reason="r"))
        self.fleet.tries(commands.ApproveRollout(rollout=name, reason="r"), by="bob")
        self.fleet.tries(commands.StartRollout(rollout=name, reason="r"))

    @rule(
        what=st.sampled_from(sorted(watched.ALONE)),
        unit=units,
        ends=st.sampled_from(watched.GLASS_ENDS),
    )
    def do_alone(self, what, unit, ends):
        """One person widens alone; then another accepts it, or somebody or the time ends it."""
        command = replace(watched.ALONE[what], reason="night")
        if hasattr(command, "unit"):
            command = replace(command, unit=unit)
        if not self.fleet.tries_alone(command, break_glass_s=60):
            return
        change = self.fleet.newest_change()
        if not self.fleet.state.changes[change].open:
            ends = "overtaken"  # by the controller itself
        elif ends == "accepted":
            self.fleet.alone(commands.AcceptChange(change=change, reason="r"), by="bob")
        elif ends == "withdrawn":
            self.fleet.alone(commands.WithdrawChange(change=change, reason="r"), by="bob")
        else:
            self.fleet.later(61)
        found = self.fleet.state.changes[change]
        assert found.ended in (ends, "overtaken")

    @rule(name=rollouts)
    def resume(self, name):
        self.fleet.tries(commands.ResumeRollout(rollout=name, reason="r"))

    # What may change nothing that stands

    def unchanged_by(self, happens):
        overrides, grants = self.fleet.standing_overrides(), self.fleet.standing_grants()
        happens()
        after = self.fleet.standing_overrides()
        assert {unit: after.get(unit) for unit in overrides} == overrides
        assert self.fleet.standing_grants() == grants

    @rule()
    def declare_a_freeze(self):
        self.unchanged_by(
            lambda: self.fleet.tries(commands.DeclareFreeze(id="f", reason="r"), role="operator")
        )

    @rule()
    def trip_the_breaker(self):
        def trip():
            if self.fleet.state.breaker_position is None:
                tripped = decisions.BreakerTripped(units=("a", "b"), window_s=60)
                self.fleet.record(tripped, "controller")
                self.fleet.settle()

        self.unchanged_by(trip)

    @rule(
        name=rollouts,
        kind=st.sampled_from([commands.PauseRollout, commands.HaltRollout, commands.AbortRollout]),
    )
    def stop_a_rollout(self, name, kind):
        self.unchanged_by(lambda: self.fleet.tries(kind(rollout=name, reason="r"), role="operator"))

    @rule(seconds=st.sampled_from([1, 600, 7 * 86400]))
    def lose_the_controller(self, seconds):
        self.unchanged_by(lambda: self.fleet.away(seconds))

    @rule()
    def lose_every_node(self):
        self.unchanged_by(lambda: self.fleet.later(301, silent=self.fleet.state.nodes))

    @precondition(lambda self: self.open_waves())
    @rule()
    def serve_out_the_open_waves(self):
        """Members are restarted, serve and bake; if that completes a rollout, what stands stays."""
        for name in self.open_waves():
            unit = self.fleet.state.units[name]
            node = next((node for node in NODES if name.startswith(f"{node}:")), None)
            if node is None or unit.launch is None or not unit.live:
                continue
            self.fleet.launch(node, build=unit.launch.ranks[0].planned.build)
            if self.fleet.unit(node).launch.decided is None:
                continue
            self.fleet.applies(node)
            self.fleet.serves(node, self.fleet.decided(node).value or "auto")
            overrides, grants = self.fleet.standing_overrides(), self.fleet.standing_grants()
            completed = len(self.fleet.seen(decisions.RolloutCompleted))
            self.fleet.bakes(node, 1800)
            if len(self.fleet.seen(decisions.RolloutCompleted)) > completed:
                assert grants <= self.fleet.standing_grants()
                for unit_id, told in self.fleet.standing_overrides().items():
                    assert told in (overrides[unit_id], ("append", given.TARGET))

    def open_waves(self):
        waves = [rollout.open_wave for rollout in self.fleet.state.rollouts.values()]
        return [unit for wave in waves if wave is not None for unit in wave.units]

    # What holds always

    @invariant()
    def planning_again_gives_nothing(self):
        assert planner.plan(self.fleet.state, self.fleet.now_us).events == ()

    @invariant()
    def what_is_told_to_stand_is_one_that_may(self):
        for unit in self.fleet.state.units.values():
            override = unit.override
            if override is None or override.value != given.TARGET or not unit.live:
                continue
            assert override.form in ("append", "keep")
            assert override.given_for.sm in ("10.0", "10.3", "10.7")
            assert override.given_for.a2a == "none"

    @invariant()
    def every_order_ends(self):
        for drain in self.fleet.state.drains.values():
            ordered_us = self.fleet.state.led_us(self.fleet.now_us) - drain.since_led_us
            assert drain.failed is not None or ordered_us < drain.timeout_s * 1_000_000

    def teardown(self):
        self.every_walk_names_the_rule_that_decided()
        histories.recomputes(self.fleet.history)
        histories.plans_again(self.fleet.history)
        histories.replays(self.fleet.history, self.fleet.now_us)

    def every_walk_names_the_rule_that_decided(self):
        for name in self.fleet.state.units:
            decision = rules.decide_unit(self.fleet.state, name, self.fleet.now_us)
            applying = [row.codes for row in walk.rows(decision) if row.state == "applies"]
            assert applying[0] == (decision.event.code,)
            assert applying[1:] in ([], [("no_safe_value",)])


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    phases=set(Phase) - {Phase.explain},  # what it would say is not worth its minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_the_machine_reaches_what_it_is_about():
    """The first steps that the machine takes do lead to a grant, so its invariants are not idle."""
    fleet = watched.Watched(min_gpu_sets=2).enforce().qualified()
    fleet.node("a")
    fleet.launch("a", gpus=(values.Gpu(uuid="GPU-a", sm="10.7"),))
    fleet.rollout()
    assert fleet.standing_grants()
    assert fleet.told_launch
