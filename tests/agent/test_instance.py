"""Readings of one instance to facts."""

import pytest

from smgate.wire import facts
from smgate_agent import (
    config,
    instance,
    launch_records,
    log_reader,
    model_config,
    server_args,
    server_info,
    units,
)

K3 = "KimiK3ForConditionalGeneration"
MODEL = model_config.ModelConfig(architecture=K3, mxfp4=True)


def args(runner="auto", a2a="none"):
    return server_args.ServerArgs(runner=runner, a2a=a2a, tp=8, pp=1)


def info(runner="auto", weight=None):
    return server_info.ServerInfo(args=args(runner), version="0.5.23", weight_bytes=weight)


def life(number=1, runner="auto", **changes):
    return log_reader.Life(number=number, args=args(runner), **changes)


class Node:
    """An instance's tracker, and the facts that an outbox would have kept of it."""

    def __init__(self, memory=None, **declared):
        declared.setdefault("url", "http://127.0.0.1:30000")
        self.declared = config.Instance(id="i", **declared)
        self.tracker = instance.Tracker(self.declared, frozenset({K3}), memory or instance.Memory())
        self.said = {}

    def read(self, http="none", **reading):
        new = []
        for offer in self.tracker.observe(instance.Reading(http=http, **reading)):
            if self.said.get(offer.key) != (offer.salt, offer.payload):
                self.said[offer.key] = (offer.salt, offer.payload)
                new.append(offer.payload)
        return new

    def kinds(self, **reading):
        return [type(fact).__name__ for fact in self.read(**reading)]

    @property
    def state(self):
        return self.tracker.view.state


def test_a_port_that_never_answered_is_unknown_and_makes_no_fact():
    node = Node()
    for http in ("refused", "sick", "refused", "sick"):
        assert node.read(http=http) == []
    assert node.state is None
    assert node.tracker.view.verdict.known is False


def test_a_whole_life_is_told_once_and_then_nothing_at_rest():
    node = Node()
    assert node.kinds(http="refused", life=life()) == ["InstanceChanged"]
    assert node.kinds(http="refused", life=life(initialised=True), model=MODEL) == [
        "EffectiveSeen",
        "MemoryFallbackSeen",
    ]
    done = life(initialised=True, loaded=True, weight_bytes=units.GIB)
    assert node.kinds(http="starting", life=done, model=MODEL) == [
        "WeightsSeen",
        "MemoryFallbackSeen",
    ]
    first = node.read(http="ok", life=done, model=MODEL, info=info(weight=units.GIB))
    assert [type(fact) for fact in first] == [facts.InstanceChanged, facts.EffectiveSeen]
    for _ in range(1000):
        assert node.read(http="ok", life=done, model=MODEL, info=info(weight=units.GIB)) == []


def test_imminent_becomes_crashed_and_stays_so_when_the_server_is_gone():
    node = Node()
    node.read(http="refused", life=life(initialised=True), model=MODEL)
    dead = life(initialised=True, died=True, upcast_ran_out_of_memory=True)
    told = node.read(http="refused", life=dead, model=MODEL)
    assert [fact.state for fact in told if isinstance(fact, facts.InstanceChanged)] == ["exited"]
    assert [fact.phase for fact in told if isinstance(fact, facts.MemoryFallbackSeen)] == [
        "crashed"
    ]
    assert node.read(http="refused", life=dead, model=MODEL) == []
    again = node.read(http="refused", life=life(number=2, initialised=True), model=MODEL)
    assert [fact.phase for fact in again if isinstance(fact, facts.MemoryFallbackSeen)] == [
        "imminent"
    ]


def test_a_fallback_is_cleared_when_the_instance_serves_packed_and_not_before():
    node = Node()
    node.read(http="ok", info=info("auto"), model=MODEL)
    unknown = node.read(http="ok", model=MODEL)
    assert not any(isinstance(fact, facts.MemoryFallbackCleared) for fact in unknown)
    packed = node.read(http="ok", info=info("marlin"), model=MODEL)
    assert facts.MemoryFallbackCleared(instance_id="i") in packed
    assert facts.MemoryFallbackCleared(instance_id="i") not in node.read(
        http="ok", info=info("marlin"), model=MODEL
    )


def test_a_fallback_ends_with_the_instance():
    node = Node()
    node.read(http="ok", info=info("auto"), model=MODEL)
    node.read(http="refused", info=info("auto"), model=MODEL)
    told = node.read(http="refused", info=info("auto"), model=MODEL)
    assert told[0].state == "exited"
    assert facts.MemoryFallbackCleared(instance_id="i") in told


def test_a_packed_server_never_clears_what_was_never_raised():
    node = Node()
    told = node.read(http="ok", info=info("marlin"), model=MODEL)
    assert not any(isinstance(fact, facts.MemoryFallbackCleared) for fact in told)


def test_a_raised_fallback_outlives_a_restart_of_the_agent():
    first = Node()
    first.read(http="ok", info=info("auto"), model=MODEL)
    second = Node(memory=first.tracker.memory)
    told = second.read(http="ok", info=info("marlin"), model=MODEL)
    assert facts.MemoryFallbackCleared(instance_id="i") in told


def test_one_late_answer_is_noise_two_are_unhealthy():
    node = Node()
    node.read(http="ok", info=info())
    assert node.read(http="sick", info=info()) == []
    assert node.read(http="sick", info=info())[0].state == "unhealthy"
    assert node.read(http="ok", info=info())[0].state == "serving"


def test_503_is_starting_before_it_served_and_unhealthy_after():
    node = Node()
    assert node.read(http="starting")[0].state == "starting"
    node.read(http="ok")
    assert node.read(http="starting")[0].state == "unhealthy"


def test_a_refused_port_after_serving_is_an_exit_and_coming_back_a_restart():
    node = Node()
    node.read(http="ok")
    assert node.read(http="refused") == []
    assert node.read(http="refused")[0].state == "exited"
    back = node.read(http="starting")[0]
    assert (back.state, back.restarts) == ("starting", 1)
    assert node.read(http="ok")[0].restarts == 1


def test_restarts_are_the_starts_in_the_log_and_are_not_counted_twice():
    node = Node()
    node.read(http="ok", life=life(initialised=True, ready=True))
    node.read(http="refused", life=life(initialised=True, ready=True, died=True))
    told = node.read(http="refused", life=life(number=2))
    assert (told[0].state, told[0].restarts) == ("starting", 1)
    assert node.read(http="ok", life=life(number=2, initialised=True))[0].restarts == 1


def test_each_start_attests_its_backend_anew_though_it_did_not_change():
    node = Node()
    node.read(http="ok", life=life(initialised=True), info=info("marlin"))
    told = node.read(http="ok", life=life(number=2, initialised=True), info=info("marlin"))
    assert any(isinstance(fact, facts.EffectiveSeen) for fact in told)


def test_the_first_start_in_an_empty_log_is_no_restart():
    node = Node()
    node.read(http="refused", life=log_reader.Life())
    assert node.read(http="refused", life=life())[0].restarts == 0


def test_a_start_seen_before_its_first_log_line_is_the_same_start():
    node = Node()
    node.read(http="refused", life=log_reader.Life(), process="alive")
    assert node.state == "starting"
    assert node.read(http="refused", life=life(), process="alive") == []
    assert node.tracker.view.restarts == 0


def test_a_start_in_an_empty_log_after_a_known_server_is_a_restart():
    node = Node()
    node.read(http="ok", life=log_reader.Life())
    assert node.read(http="refused", life=life())[0].restarts == 1


def test_starts_while_the_agent_was_away_are_counted():
    first = Node()
    first.read(http="ok", life=life(initialised=True))
    second = Node(memory=first.tracker.memory)
    assert second.read(http="ok", life=life(number=4, initialised=True))[0].restarts == 3


def test_a_follower_is_known_by_its_log_alone():
    node = Node(url=None, log="/x", nnodes=2, node_rank=1)
    assert node.read(life=life())[0].state == "starting"
    told = node.read(life=life(initialised=True), model=MODEL)
    assert [fact.source for fact in told if isinstance(fact, facts.EffectiveSeen)] == ["log"]
    ready = life(initialised=True, loaded=True, ready=True)
    assert node.read(life=ready, model=MODEL)[0].state == "serving"
    assert (node.tracker.view.verdict.phase, node.declared.node_rank) == ("active", 1)
    assert node.read(life=life(initialised=True, died=True), model=MODEL)[0].state == "exited"


def test_an_unresolved_line_before_initialisation_is_no_attestation():
    node = Node()
    told = node.read(http="refused", life=life(runner="auto"), model=MODEL)
    assert [type(fact) for fact in told] == [facts.InstanceChanged]
    assert node.tracker.view.verdict.phase is None


def test_a_process_that_is_gone_is_an_exit_whatever_the_log_last_said():
    node = Node(url=None, log="/x")
    ready = life(initialised=True, loaded=True, ready=True)
    node.read(life=ready, process="alive")
    assert node.read(life=ready, process="gone")[0].state == "exited"


def test_the_launch_record_links_the_instance_and_fills_what_was_not_declared():
    record = launch_records.LaunchRecord(
        launch_id="launch-1", unit_name="u", nnodes=2, node_rank=1, gpu_uuids=("GPU-1",)
    )
    node = Node()
    fact = node.read(http="ok", launch=record)[0]
    assert (fact.launch_id, fact.unit_name, fact.gpu_uuids) == ("launch-1", "u", ("GPU-1",))
    assert (fact.nnodes, fact.node_rank) == (2, 1)
    declared = Node(launch_id="mine", unit_name="v").read(http="ok", launch=record)[0]
    assert (declared.launch_id, declared.unit_name) == ("mine", "v")


def test_what_the_log_told_before_a_launch_is_not_of_that_launch():
    """Else a server that is started onto the safe value is taken for one that runs the target."""
    first, second = (launch_records.LaunchRecord(launch_id=one) for one in ("l1", "l2"))
    target = life(1, "flashinfer_mxfp4", initialised=True, ready=True)
    node = Node()
    node.read(http="ok", life=target, launch=first)
    node.read(http="refused", life=target, launch=first)
    node.read(http="refused", life=target, launch=first)
    assert node.state == "exited"
    memory = node.tracker.memory
    for again in (node, Node(memory=memory)):
        for http in ("refused", "sick", "sick", "sick"):
            assert again.read(http=http, life=target, launch=second) == []
        assert again.state is None
        safe = life(2, "marlin", initialised=True)
        changed, effective = again.read(http="refused", life=safe, launch=second)
        assert (changed.state, changed.restarts, changed.launch_id) == ("starting", 1, "l2")
        assert effective.runner == "marlin"
        third = launch_records.LaunchRecord(launch_id="l3")
        (changed,) = again.read(http="ok", launch=third)  # its log can no longer be read
        assert changed.restarts == 2


def test_an_agent_that_comes_back_still_knows_which_life_was_left():
    first, second = (launch_records.LaunchRecord(launch_id=one) for one in ("l1", "l2"))
    node = Node()
    node.read(http="ok", life=life(1, "flashinfer_mxfp4", initialised=True), launch=first)
    node.read(http="sick", life=life(1, "flashinfer_mxfp4", initialised=True), launch=second)
    again = Node(memory=node.tracker.memory)
    alive = life(1, "flashinfer_mxfp4", initialised=True, ready=True)
    assert not [
        fact
        for _ in range(3)
        for fact in again.read(http="sick", life=alive, launch=second)
        if isinstance(fact, facts.EffectiveSeen)
    ]


def test_a_launch_and_its_first_line_that_are_seen_together_are_one_start():
    first, second = (launch_records.LaunchRecord(launch_id=one) for one in ("l1", "l2"))
    node = Node()
    node.read(http="ok", life=life(1, initialised=True), launch=first)
    changed, *_ = node.read(http="refused", life=life(2, "marlin"), launch=second)
    assert (changed.state, changed.restarts, changed.launch_id) == ("starting", 1, "l2")


def test_a_pair_without_its_a2a_is_not_reported():
    node = Node()
    half = server_info.ServerInfo(
        args=server_args.ServerArgs(runner="auto"), version=None, weight_bytes=None
    )
    told = node.read(http="ok", info=half, model=MODEL)
    assert [type(fact) for fact in told] == [facts.InstanceChanged]
    assert node.tracker.view.verdict.known is False


@pytest.mark.parametrize("weight", [None, 647 * units.GIB])
def test_weights_are_a_fact_only_when_they_were_measured(weight):
    node = Node(expected_packed_bytes=275 * units.GIB)
    told = node.read(http="ok", info=info("marlin", weight), model=MODEL)
    assert any(isinstance(fact, facts.WeightsSeen) for fact in told) == (weight is not None)
    assert node.tracker.view.verdict.phase == ("active" if weight else None)
