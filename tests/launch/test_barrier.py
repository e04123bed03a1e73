"""Ranks wait for each other at SGLang's own launch gate: real gates, guards and servers on loopback."""

import contextlib
import json
import os
import shutil
import signal
import socket
import time

import pytest
from tests.launch import several

from smgate_agent.launch import barrier, barrier_rule, ranks

FLAG = "--gated-launch-port"
GATED = b'"gated": true'
THROUGH_THE_GATE = ["started", "joined", "activated", "served"]
PAST_NO_GATE = ["started", "joined", "served"]


@pytest.fixture
def unit(tmp_path, archive, k3):
    with contextlib.closing(several.Unit(tmp_path, archive, k3)) as made:
        yield made


@pytest.fixture
def wire(unit):
    """Between rank 1 and rank 0: cut when rank 1 is told to wait, before it hears that."""
    with contextlib.closing(several.Wire(unit.port, GATED)) as made:
        yield made


def rank_0_waits(unit):
    """At its port, for the others."""
    there = barrier.connect(f"127.0.0.1:{unit.port}")
    if isinstance(there, socket.socket):
        there.close()
    return isinstance(there, socket.socket)


def heard_of_rank_1(unit):
    """What it says to rank 0, which is not there yet."""
    where = ranks.address_of(f"127.0.0.1:{unit.port}", barrier.PORT_DISTANCE)
    with socket.create_server(where) as listener:
        listener.settimeout(several.PATIENCE_S)
        connection, _ = listener.accept()
        with connection:
            return json.loads(connection.recv(65536))


def events(started):
    for one in started:
        one.wait_for("served")
    return [one.events() for one in started]


def eventually(holds, timeout_s=several.PATIENCE_S):
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_ranks_whose_pairs_agree_go_on_together(unit):
    started = unit.all_ranks()
    assert events(started) == [THROUGH_THE_GATE] * 2
    eventually(lambda: started[0].outcomes() == ["pairs_agree"])
    eventually(lambda: not any(one.guards() for one in started))


def test_nobody_waits_unless_a_person_asked_for_it(unit):
    unit.nodes[0].environ["SMGATE_BARRIER"] = unit.nodes[1].environ["SMGATE_BARRIER"] = "0"
    started = unit.all_ranks(barrier=False)
    assert events(started) == [PAST_NO_GATE] * 2
    assert not any(FLAG in one.argv() for one in started)


@pytest.mark.parametrize(
    ("rank", "cannot"), [(0, {"NO_GATE": "1"}), (1, {"NO_GATE": "1"}), (1, {"barrier": False})]
)
def test_one_rank_that_cannot_wait_leaves_all_without(unit, rank, cannot):
    started = [
        unit.start(each, deadline_s=8, **(cannot if each == rank else {})) for each in (0, 1)
    ]
    assert events(started) == [PAST_NO_GATE] * 2


FINE = {
    "runner": "auto", "a2a": "none", "gated_launch_port": barrier_rule.PORT_TRIED, "dp_size": 1,
    "host": "0.0.0.0", "enable_dp_attention": False, "elastic_ep_backend": None, "use_ray": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "changes", "code"),
    [
        ("0.5.23", {}, None),
        ("0.5.23", {"dp_size": 1, "enable_dp_attention": True}, None),  # as SGLang resolves it
        ("0.5.23", {"host": "::"}, None),
        ("0.5.18", {}, "sglang_has_no_gate"),
        ("0.6.0", {}, "sglang_has_no_gate"),
        (None, {}, "sglang_has_no_gate"),
        ("0.5.23", {"gated_launch_port": 40000}, "gate_is_taken"),
        ("0.5.23", {"dp_size": 2}, "several_worlds"),
        ("0.5.23", {"dp_size": None}, "several_worlds"),
        ("0.5.23", {"elastic_ep_backend": "mooncake"}, "ranks_come_and_go"),
        ("0.5.23", {"use_ray": True}, "ranks_come_and_go"),
        ("0.5.23", {"host": "node-7"}, "host_is_a_name"),
        ("0.5.23", {"host": None}, "host_is_a_name"),
    ],
)
def test_a_server_whose_gate_could_stay_shut_gets_none(version, changes, code):
    assert barrier_rule.hindrance(version, {**FINE, **changes}) == code


def test_without_sglangs_own_word_there_is_no_gate():
    assert barrier_rule.hindrance("0.5.23", None) == "not_resolved"


@pytest.mark.parametrize("late", [0, 1])
def test_a_late_rank_is_waited_for(unit, late):
    first = unit.start(1 - late, deadline_s=40)
    if late == 1:
        eventually(lambda: rank_0_waits(unit))
    else:
        assert heard_of_rank_1(unit)["able"]
    assert events([first, unit.start(late, deadline_s=40)]) == [THROUGH_THE_GATE] * 2


def test_a_rank_that_comes_too_late_finds_a_launch_without(unit):
    first = unit.start(0, deadline_s=4)
    first.wait_for("started")
    assert events([first, unit.start(1, deadline_s=2)]) == [PAST_NO_GATE] * 2


def test_a_rank_that_died_before_it_counted_leaves_all_without(unit):
    dead = unit.start(1, deadline_s=30)
    assert heard_of_rank_1(unit)["able"]
    dead.process.kill()
    dead.process.wait()
    first = unit.start(0, deadline_s=4)
    first.wait_for("started")
    assert events([first, unit.start(1, deadline_s=2)]) == [PAST_NO_GATE] * 2


# The network parts


def test_a_rank_that_was_counted_and_not_told_asks_until_it_knows(unit, wire):
    over = time.monotonic() + 21
    started = [unit.start(0, deadline_s=20), unit.start(1, deadline_s=20, port=wire.port)]
    started[0].wait_for("started")
    time.sleep(max(0.0, over - time.monotonic()))  # past rank 1's own deadline
    assert started[1].events() == []
    wire.mend()
    assert events(started) == [THROUGH_THE_GATE] * 2


def test_a_rank_that_was_counted_goes_on_when_rank_0_is_gone(unit):
    where = ranks.address_of(f"127.0.0.1:{unit.port}", barrier.PORT_DISTANCE)
    with socket.create_server(where) as listener:
        follower = unit.start(1, deadline_s=30)
        connection, _ = listener.accept()
        with connection:
            assert json.loads(connection.recv(65536))["able"]
            connection.sendall(b'{"still_there": true}\n')
            assert json.loads(connection.recv(65536)) == {"still_there": True}
    follower.wait_for("started")
    assert FLAG not in follower.argv()
    assert "rank_0_gone" in follower.said()


def test_a_network_that_parts_behind_the_last_word_costs_the_timeout_and_no_more(unit):
    """Also where the server is slow, and comes to its gate when the time is over."""
    slow = {"IMPORT_S": "5", "timeout_s": 2}
    with contextlib.closing(several.Wire(unit.port, GATED, behind=True)) as wire:
        started = [unit.start(0, **slow), unit.start(1, port=wire.port, **slow)]
        assert events(started) == [THROUGH_THE_GATE] * 2
    eventually(lambda: started[0].outcomes() == ["gate_timeout"])
    eventually(lambda: "gate_timeout; heard of ranks [0]" in started[0].said())


# What dies


@pytest.fixture
def held(unit):
    """Both ranks at their gate, which stays shut: rank 0 hears nothing of rank 1."""
    with contextlib.closing(several.Wire(unit.port, GATED, behind=True)) as wire:
        started = [unit.start(0, timeout_s=600), unit.start(1, timeout_s=600, port=wire.port)]
        for one in started:
            one.wait_for("joined")
        time.sleep(1)
        assert all(one.is_waiting() for one in started)
        yield started


@pytest.mark.parametrize("which", [0, 1])
def test_one_guard_that_is_killed_opens_the_gate(held, which):
    guards = held[0].guards()
    assert len(guards) == 2
    os.kill(guards[which], signal.SIGKILL)
    assert events(held) == [THROUGH_THE_GATE] * 2
    eventually(lambda: held[0].outcomes() == ["guard_died"])
    assert "guard_died" in held[0].said()
    eventually(lambda: not held[0].guards())


def test_guards_that_are_killed_one_after_the_other_leave_no_gate_shut(unit):
    started = unit.all_ranks(IMPORT_S="8")
    started[0].wait_for("started")
    killed = []
    for which in (0, 1, -1, 0):
        # The other one has seen it, and started another: both at once is what nothing survives.
        eventually(lambda: len(set(started[0].guards()) - set(killed)) == 2)
        killed.append([pid for pid in started[0].guards() if pid not in killed][which])
        os.kill(killed[-1], signal.SIGKILL)
    assert events(started) == [THROUGH_THE_GATE] * 2


def test_a_followers_guard_that_is_killed_costs_the_timeout(unit):
    started = unit.all_ranks(timeout_s=8, IMPORT_S="2")
    started[1].wait_for("started")
    for pid in started[1].guards():
        os.kill(pid, signal.SIGKILL)
    assert events(started) == [THROUGH_THE_GATE] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_at_the_gate_ends_the_others_as_ever(held, rank):
    held[rank].process.kill()
    assert held[1 - rank].ended() == 1
    eventually(lambda: not any(one.guards() for one in held))


# Two generations, two launches


def test_a_rank_that_starts_anew_while_the_others_wait_has_the_flag_as_they(unit):
    started = [unit.start(0), unit.start(1, IMPORT_S="60")]
    for one in started:
        one.wait_for("started")
    started[1].process.kill()
    assert events([started[0], unit.start(1)]) == [THROUGH_THE_GATE] * 2


def test_a_rank_0_that_starts_anew_takes_up_the_ranks_that_have_the_flag(unit):
    started = [unit.start(0, IMPORT_S="60"), unit.start(1, IMPORT_S="12")]
    for one in started:
        one.wait_for("started")
    started[0].process.kill()
    started[0].process.wait()
    assert events([unit.start(0), started[1]]) == [THROUGH_THE_GATE] * 2


def test_a_rank_with_the_flag_is_ended_where_rank_0_starts_anew_without(unit):
    started = [unit.start(0, IMPORT_S="60"), unit.start(1, IMPORT_S="60")]
    for one in started:
        one.wait_for("started")
    started[0].process.kill()
    started[0].process.wait()
    unit.has_no_gate(0)
    first = unit.start(0, deadline_s=8)
    assert started[1].ended() == -signal.SIGKILL
    assert "flags_differ" in started[1].said()
    first.wait_for("started")
    assert events([first, unit.start(1, deadline_s=4)]) == [PAST_NO_GATE] * 2


def test_a_rank_that_comes_without_the_flag_to_one_that_waits_with_it_ends_that(unit):
    started = [unit.start(0), unit.start(1, IMPORT_S="60")]
    for one in started:
        one.wait_for("started")
    started[1].process.kill()
    unit.has_no_gate(1)
    other = unit.start(1, deadline_s=8, IMPORT_S="6")
    assert started[0].ended() == -signal.SIGKILL
    assert "flags_differ" in started[0].said()
    other.wait_for("started")
    assert events([unit.start(0, deadline_s=4), other]) == [PAST_NO_GATE] * 2


def test_two_launches_at_once_never_hang_in_two_collectives(unit):
    started = unit.all_ranks(deadline_s=12) + unit.all_ranks(deadline_s=12)
    eventually(lambda: sum("served" in one.events() for one in started) == 2)
    assert not any("hangs" in one.events() for one in started)


# The ranks disagree


def test_a_disagreement_ends_the_launch_and_the_next_takes_the_safe_value(unit):
    unit.hold_target()
    started = [unit.start(0, RESOLVED="flashinfer_mxfp4"), unit.start(1, RESOLVED="triton")]
    # Rank 0 is ended; the other one too, if it does not end first because it lost rank 0.
    assert started[0].ended() == -signal.SIGKILL
    assert started[1].ended() != 0
    for one in started:
        assert one.argv()[-4:-2] == ["--moe-runner-backend", "flashinfer_mxfp4"]
        assert "activated" not in one.events()
        assert one.outcomes() == ["unit_disagreed_here"]
        assert "unit_disagreed_here: flashinfer_mxfp4, none / triton, none" in one.said()
    again = unit.all_ranks()
    assert events(again) == [THROUGH_THE_GATE] * 2
    for one in again:
        assert one.argv()[-4:-2] == ["--moe-runner-backend", "marlin"]
        assert "(unit_disagreed_here, by local rule" in one.said()


def test_no_second_launch_is_ended_for_it(unit):
    differ = [{"RESOLVED": "flashinfer_mxfp4"}, {"RESOLVED": "triton"}]
    started = [unit.start(rank, **differ[rank]) for rank in (0, 1)]
    # Rank 0 is ended; the other one too, if it does not end first because it lost rank 0.
    assert started[0].ended() == -signal.SIGKILL
    assert started[1].ended() != 0
    again = [unit.start(rank, **differ[rank]) for rank in (0, 1)]
    assert events(again) == [THROUGH_THE_GATE] * 2
    eventually(lambda: again[0].outcomes() == ["unit_disagreed_here", "disagreed_again"])


def test_the_memory_of_one_rank_is_enough(unit):
    differ = [{"RESOLVED": "flashinfer_mxfp4"}, {"RESOLVED": "triton"}]
    for one in [unit.start(rank, **differ[rank]) for rank in (0, 1)]:
        one.ended()
    shutil.rmtree(unit.nodes[0].state / "launches")
    again = [unit.start(rank, **differ[rank]) for rank in (0, 1)]
    assert events(again) == [THROUGH_THE_GATE] * 2


def test_what_cannot_be_remembered_ends_nothing(unit):
    for node in unit.nodes:
        (node.state / "launches").mkdir()
        (node.state / "launches" / "disagreed").write_text("a file where the folder should be")
    started = [unit.start(0, RESOLVED="flashinfer_mxfp4"), unit.start(1, RESOLVED="triton")]
    assert events(started) == [THROUGH_THE_GATE] * 2
    eventually(lambda: "disagreed_again" in started[0].said())
