"""Two agents with one identity are seen, said, and told from a machine that was rebuilt."""

import pytest
from tests import given

from smgate.domain import clones, facts, rulings
from smgate.views import present

DAY_S = 86_400


@pytest.fixture
def fleet():
    made = given.Fleet().enforce()
    made.node("n0", "n1")
    return made


def spoke(fleet, *outboxes, apart_s=60):
    """The resident agents of `n0` and its copies report, each from its own outbox."""
    for number, outbox in enumerate(outboxes):
        fault = facts.GpuFaultSeen(gpu_uuid="GPU-n0-0", xid=number + 1)
        fleet.says("n0", fault, outbox=f"outbox/{outbox}")
        fleet.later(apart_s)


def alarmed(fleet):
    """The nodes of the alarm, and what `node show` says of them."""
    episodes = [e for e in fleet.state.episodes.values() if e.cause == "node_cloned"]
    said = [e.units for e in episodes if e.absent_led_us is None and not e.closed_us]
    states = {name: row["state"] for name, row in present.nodes(fleet.state).items()}
    cloned = tuple(name for name, state in states.items() if state == "cloned")
    assert said == ([cloned] if cloned else [])
    return cloned


@pytest.mark.parametrize(
    "outboxes",
    ["aaaa", "aab", "abcdefghijkl", "aba", "abbba", "abac"],
    ids=[
        "one",
        "rebuilt",
        "rebuilt each day",
        "put back from a snapshot",
        "put back after it had gone on",
        "put back, and rebuilt",
    ],
)
def test_a_machine_with_a_new_outbox_is_no_clone(fleet, outboxes):
    spoke(fleet, *outboxes)
    assert alarmed(fleet) == ()


@pytest.mark.parametrize("outboxes", ["abab", "aabbaabb", "abcabc", "abacbc"])
def test_outboxes_that_take_turns_are_two_machines(fleet, outboxes):
    spoke(fleet, *outboxes)
    assert alarmed(fleet) == ("n0",)
    (episode,) = [e for e in fleet.state.episodes.values() if e.cause == "node_cloned"]
    assert (episode.gate, episode.sm) == ("none", "all")


def test_the_gate_has_an_outbox_for_each_launch_and_is_no_clone(fleet):
    for launch in ("l-1", "l-2", "l-1", "l-2", "l-1"):
        applied = facts.OverrideApplied(
            launch_id=launch, code="granted", value="marlin", form="appended", source="directive"
        )
        fleet.says("n0", applied, outbox=f"outbox/{launch}")
        spoke(fleet, "a")
    assert alarmed(fleet) == ()


def test_two_snapshots_put_back_weeks_apart_are_no_clone(fleet):
    spoke(fleet, *"aba", apart_s=8 * DAY_S)
    spoke(fleet, *"ba", apart_s=8 * DAY_S)
    assert alarmed(fleet) == ()


def test_it_is_over_when_the_node_is_enrolled_anew(fleet):
    spoke(fleet, *"abab")
    enrolled = rulings.NodeEnrolled(node="n0", machine_id="m", agent_version="1")
    fleet.record(enrolled, "operator:join/1")
    fleet.settle()
    fleet.later(600)
    assert alarmed(fleet) == ()
    spoke(fleet, *"bbb")
    assert alarmed(fleet) == ()


def test_it_is_over_when_one_of_them_has_been_quiet_for_a_week(fleet):
    spoke(fleet, *"abab")
    spoke(fleet, *"bbb", apart_s=2 * DAY_S)
    assert alarmed(fleet) == ("n0",)
    spoke(fleet, *"bbb", apart_s=2 * DAY_S)
    assert alarmed(fleet) == ()


def test_what_is_kept_of_a_node_is_bounded(fleet):
    spoke(fleet, *(str(number) for number in range(3 * clones.OUTBOXES_KEPT)))
    assert len(fleet.state.nodes["n0"].outboxes) == clones.OUTBOXES_KEPT
