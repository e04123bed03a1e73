"""Traps about builds, nodes and time, each as a pair: one history must advance, one must not."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, evolve, facts, policy

GRANTED = ("append", given.TARGET, "granted")


def fleet_of(*nodes, **numbers):
    """Servers on SM107 of a qualified build, each behind its launch gate."""
    made = given.Fleet(breaker_bad_units=100, **numbers).enforce().qualified()
    made.node(*nodes)
    for node in nodes:
        made.launch(node, settled=False)
    made.settle()
    return made


def start(fleet, nodes, **plan):
    fleet.rollout(select=policy.Selector(units=tuple(fleet.id(n) for n in nodes)), **plan)


# T10: the minor of the SM was lost, and 10.7 became "blackwell"


@pytest.mark.parametrize(
    ("sm", "told"),
    [
        ("10.7", GRANTED),
        ("10.3", ("untouched", None, "baseline_sm")),
        ("10.1", ("untouched", None, "sm_unsupported")),
        ("12.0", ("append", given.SAFE, "sm_unsupported")),
        (None, ("keep", None, "sm_unknown")),
    ],
)
def test_trap_t10_the_target_goes_to_the_exact_sm_alone(sm, told):
    fleet = fleet_of("a")
    if sm is not None:
        fleet.enforce(sm)
    fleet.rollout()
    fleet.node("x", sm=sm)
    fleet.launch("x", sm=sm)
    fleet.orders(commands.AbortRollout(rollout="r1", reason="again"))
    fleet.rollout("r2")
    assert fleet.told("x") == told


@pytest.mark.parametrize(("sm", "taken"), [("10.7", True), ("blackwell", False), ("10", False)])
def test_trap_t10_a_family_label_is_no_sm(sm, taken):
    fleet = given.Fleet()
    command = commands.SetGateMode(gate=given.GATE, sm=sm, mode="enforce", reason="r")
    if taken:
        assert fleet.orders(command)
    else:
        assert fleet.refuses(command) == "bad_sm"


# T11: a >= on versions let a reverted build in


@pytest.mark.parametrize(
    ("version", "starts"), [("0.7.0", True), ("0.7.1", False), ("0.7.2", True)]
)
def test_trap_t11_a_bad_build_between_two_good_ones_is_stopped(version, starts):
    made = given.build(flashinfer_version=version)
    fleet = given.Fleet().enforce().qualified(made)
    fleet.orders(
        commands.PublishIssue(
            issue=policy.KnownIssue(
                id="fi-4171", title="reverted", match={"flashinfer": ("0.7.1", "0.7.1.*")}
            ),
            reason="read it",
        )
    )
    fleet.node("a")
    fleet.launch("a", build=made)
    fleet.rollout()
    code = "granted" if starts else "known_issue:fi-4171"
    assert fleet.told("a") == ("append", given.TARGET if starts else given.SAFE, code)


@pytest.mark.parametrize(("version", "starts"), [("0.7.2.post1", True), ("0.7.9", False)])
def test_trap_t11_a_newer_version_is_no_evidence(version, starts):
    fleet = fleet_of("a")
    fleet.launch("a", build=given.build(flashinfer_version=version))
    fleet.rollout()
    fleet.launch("a", build=given.build(flashinfer_version=version))
    assert (fleet.told("a")[1] == given.TARGET) is starts


# T12: one odd node stopped the fleet, and nothing said why


ODD = {
    "nothing known": facts.LaunchPlanned(launch_id="x-9", platform="cuda", argv_read=False),
    "no version": replace(
        facts.LaunchPlanned(launch_id="x-9", platform="cuda", argv_read=True),
        build=given.build(torch_cuda="nightly", sglang_version="?", driver_version="abc"),
        gpus=(given.values.Gpu(uuid="GPU-x", sm="10.7"),),
        model=given.MODEL,
    ),
    "rank out of range": replace(
        facts.LaunchPlanned(launch_id="x-9", platform="cuda", argv_read=True),
        node_rank=7,
        nnodes=2,
        unit_name="odd",
    ),
    "applied what nobody planned": facts.OverrideApplied(
        launch_id="ghost", form="appended", value="marlin", source="local_rule", code="x"
    ),
    "a server nobody started": facts.BakeInterval(
        instance_id="ghost", interval_s=1, requests=1, failures=0
    ),
    "a check of nothing": facts.CheckFinished(
        check="moe_mxfp4",
        outcome="failed",
        reason="odd",
        sm=None,
        gpu_uuids=(),
        build=given.values.Build(),
        probe_version="0",
    ),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_trap_t12_an_odd_node_affects_itself_alone_and_why_has_a_code(odd):
    fleet = fleet_of("a")
    fleet.node("x")
    fleet.says("x", odd)
    fleet.later(60)
    fleet.rollout(select=policy.Selector(units=(fleet.id("a"),)))
    assert fleet.told("a") == GRANTED
    for unit in fleet.state.units.values():
        if unit.id != fleet.id("a") and unit.live:
            assert unit.override is not None
            assert unit.override.code
            assert unit.override.value != given.TARGET


@pytest.mark.parametrize(("node", "told"), [("b", GRANTED), ("a", None)])
def test_trap_t12_a_node_that_fails_its_test_stops_itself(node, told):
    fleet = fleet_of("a", "b")
    start(fleet, "ab", failures_max=100, failure_percent=100)
    fleet.check("a", outcome="failed")
    assert fleet.told(node) == (told or ("append", given.SAFE, "self_test_failed"))


# T13: a state was waited in for ever


@pytest.mark.parametrize("answered", [True, False])
def test_trap_t13_a_check_that_never_answers_holds_nobody_for_ever(answered):
    fleet = given.Fleet().enforce()
    fleet.node("p1", pool=True)
    fleet.launch("p1")
    assert "wanted_check" in {wait.code for wait in fleet.waits}
    if answered:
        fleet.passes("p1")
    else:
        fleet.later(100)
    timed_out = [event.code for event in fleet.seen(decisions.WaitTimedOut)]
    assert timed_out == ([] if answered else ["wanted_check"])
    assert fleet.decided("p1").value == given.SAFE


def test_trap_t13_every_waiting_state_of_the_domain_has_a_timer_or_a_person():
    fleet = fleet_of("a", "b", "c")
    fleet.serves("b")
    fleet.rollout(waves=(policy.Wave(count=1), policy.Wave(percent=100)))
    fleet.check("p1", outcome="failed")
    fleet.launch("p2")
    fleet.launch("x", nnodes=2, unit_name="two")
    fleet.orders(commands.DeclareFreeze(id="f", reason="r"))
    codes = {wait.code for wait in fleet.waits}
    assert {"rollout", "wave", "suspect", "wanted_check", "unit_launch", "freeze"} <= codes
    for wait in fleet.waits:
        assert wait.owner
        assert wait.next_step
        assert wait.remaining_us is not None or wait.code in ("freeze", "breaker_open")
    fleet.later(365 * 86400)
    overdue = [
        wait for wait in fleet.waits if wait.remaining_us is not None and wait.remaining_us <= 0
    ]
    said = {event.wait for event in fleet.seen(decisions.WaitTimedOut)}
    assert {wait.id for wait in overdue} <= said
    assert fleet.phase() == "paused"


# T17: the order of a map changed the outcome


def shuffled(event):
    """The same event with every map in the opposite order."""
    if isinstance(event, facts.CheckFinished | facts.LaunchPlanned):
        pins = dict(reversed(event.build.artifact_pins.items()))
        return replace(event, build=replace(event.build, artifact_pins=pins))
    return event


@pytest.mark.parametrize("same_pins", [True, False])
def test_trap_t17_the_order_of_a_map_changes_nothing(same_pins):
    pins = {"A": "aa" * 8, "B": "bb" * 8}
    made = given.build(artifact_pins=pins)
    fleet = given.Fleet().enforce().qualified(made)
    fleet.node("a")
    other = dict(reversed(pins.items())) if same_pins else {"A": "bb" * 8, "B": "aa" * 8}
    assert list(other) != list(pins) or not same_pins
    fleet.launch("a", build=replace(made, artifact_pins=other))
    fleet.rollout()
    fleet.launch("a", build=replace(made, artifact_pins=other))
    assert (fleet.told("a") == GRANTED) is same_pins
    again = evolve.fold(one._replace(event=shuffled(one.event)) for one in fleet.history)
    assert given.planner.plan(again, fleet.now_us) == given.planner.plan(fleet.state, fleet.now_us)


# T22: labels grew with nodes and builds (the service counts its own series)


def labels(fleet):
    """What the domain offers to count by: causes, SMs, phases, codes; never a node, unit or build."""
    return {
        *(("episode", e.gate, e.sm, e.cause) for e in fleet.state.episodes.values()),
        *(("fallback", *key) for key in fleet.state.fallbacks_total),
        *(("event", name) for name in fleet.state.events_total),
    }


def labels_after(nodes, odd_sm=None):
    """Labels of a fleet in which every node has a build of its own, BF16, and a failed check."""
    fleet = given.Fleet().enforce()
    for number in range(nodes):
        node, made = f"n{number}", given.build(flashinfer_version=f"0.7.{number}")
        fleet.node(node)
        fleet.launch(node, build=made)
        fleet.serves(node, "auto")
        fleet.check(node, outcome="failed", made=made)
    if odd_sm is not None:
        fleet.node("odd", sm=odd_sm)
        fleet.launch("odd", sm=odd_sm)
        fleet.serves("odd", "auto")
    return labels(fleet)


@pytest.mark.parametrize(
    ("nodes", "odd_sm", "grows"), [(40, None, False), (4, "9.0", True)], ids=["nodes", "an SM"]
)
def test_trap_t22_labels_grow_with_sms_and_never_with_nodes_or_builds(nodes, odd_sm, grows):
    few, found = labels_after(4), labels_after(nodes, odd_sm)
    assert (found > few) is grows
    assert grows or found == few
