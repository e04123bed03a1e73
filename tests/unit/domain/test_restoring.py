"""After a restore: nothing widens by itself, and what nodes were told more carefully stands."""

import pytest
from tests import given

from smgate.domain import commands, decisions, facts, fleet_asks, keys, policy, restoring, rules

NEW_LOG = "log-2"


@pytest.fixture
def fleet():
    """Two servers that were granted the target and run it, one that was not; then a restore."""
    made = given.Fleet().enforce().qualified()
    made.granted("a", "b")
    made.node("c")
    made.launch("c")
    made.record(
        decisions.LogRestored(before="log-1", incarnation=NEW_LOG, reason="the disk died"),
        "controller",
    )
    made.settle()
    return made


def says_it_held(fleet, node, value, code, *, unit=None, restored_as=NEW_LOG):
    """A node says what the lost log had told it of its unit."""
    form = "untouched" if value is None else "append"
    held = facts.HeldUnit(unit=unit or fleet.id(node), form=form, value=value, code=code)
    fleet.says(
        node,
        facts.DirectiveHeld(
            restored_as=restored_as, incarnation="log-1", generation=900, units=(held,)
        ),
    )


def newborn(node):
    """The id of a one-node unit that the restored log does not know."""
    planned = facts.LaunchPlanned(launch_id="lost", platform="cuda", argv_read=True)
    return keys.unit_id(node, planned, (f"GPU-{node}",))


def finish(fleet):
    return fleet.orders(fleet_asks.FinishRestore(reason="they are back"))


def held(fleet):
    return [
        (c.code, sorted(unit.partition(":")[0] for unit in c.units), c.id)
        for c in fleet.state.changes.values()
        if c.open
    ]


def test_a_restore_waits_for_a_person_and_says_who_is_missing(fleet):
    (waiting,) = [wait for wait in fleet.waits if wait.code == "restore"]
    assert waiting.owner == "approver"
    assert "6 of 6 nodes" in waiting.sentence
    says_it_held(fleet, "a", given.TARGET, "granted")
    assert any("5 of 6 nodes" in wait.sentence for wait in fleet.waits)
    finish(fleet)
    assert [wait for wait in fleet.waits if wait.code == "restore"] == []
    assert finish(fleet) == ()


def test_nothing_starts_until_the_restore_is_finished(fleet):
    fleet.orders(commands.AbortRollout(rollout="r1", reason="done"))
    fleet.rollout("r2", select=policy.Selector(units=(fleet.id("c"),)))
    assert fleet.told("c")[:2] == ("append", given.SAFE)
    decided = rules.decide_unit(fleet.state, fleet.id("c"), fleet.now_us)
    assert "restore_unfinished" in dict(decided.refusals)
    finish(fleet)
    assert fleet.told("c") == ("append", given.TARGET, "granted")


def test_what_stands_stands_while_a_restore_is_not_finished(fleet):
    assert fleet.told("a") == ("append", given.TARGET, "granted")
    says_it_held(fleet, "a", given.TARGET, "granted")
    assert fleet.told("a") == ("append", given.TARGET, "granted")
    fleet.restarts("a")
    assert fleet.decided("a").value == given.TARGET


def test_a_launch_on_a_node_that_has_not_said_what_it_held_gets_the_safe_value(fleet):
    fleet.launch("a")
    assert (fleet.decided("a").value, fleet.decided("a").code) == (
        given.SAFE,
        "restore_unfinished",
    )


def test_what_a_node_was_told_more_carefully_stands(fleet):
    says_it_held(fleet, "a", given.SAFE, "pinned_off")
    assert fleet.told("a") == ("append", given.SAFE, "held_before_restore")
    assert "pinned_off" in fleet.override("a").sentence
    fleet.restarts("a")
    assert fleet.decided("a").value == given.SAFE
    assert fleet.told("b") == ("append", given.TARGET, "granted")


def test_a_unit_that_had_been_given_back_stays_so(fleet):
    says_it_held(fleet, "a", None, "released")
    assert fleet.told("a")[:2] == ("untouched", None)


def test_after_the_restore_it_waits_for_a_person(fleet):
    says_it_held(fleet, "a", given.SAFE, "pinned_off")
    finish(fleet)
    ((code, units, change),) = held(fleet)
    assert (code, units) == ("restore", ["a"])
    (difference,) = fleet.state.changes[change].differences
    assert (difference.before, difference.before_code) == (given.SAFE, "pinned_off")
    assert (difference.after, difference.after_code) == (given.TARGET, "granted")
    fleet.restarts("a")
    assert (fleet.decided("a").value, fleet.decided("a").code) == (
        given.SAFE,
        "held_before_restore",
    )
    assert "pinned_off" in fleet.decided("a").sentence, "why it was more careful"
    fleet.orders(commands.AcceptChange(change=change, reason="it was a test"), by="bob")
    assert fleet.told("a") == ("append", given.TARGET, "granted")


def test_what_a_person_accepted_does_not_come_back(fleet):
    says_it_held(fleet, "a", given.SAFE, "pinned_off")
    finish(fleet)
    ((_, _, change),) = held(fleet)
    fleet.orders(commands.AcceptChange(change=change, reason="it was a test"), by="bob")
    fleet.restarts("a")
    assert fleet.decided("a").value == given.TARGET
    assert held(fleet) == []


def test_a_node_that_comes_back_after_the_restore_is_heard_too(fleet):
    finish(fleet)
    assert held(fleet) == []
    says_it_held(fleet, "a", given.SAFE, "pinned_off")
    assert fleet.told("a")[:2] == ("append", given.SAFE)
    assert [one[:2] for one in held(fleet)] == [("restore", ["a"])]


def test_a_node_that_held_what_is_wider_follows_the_restored_log(fleet):
    says_it_held(fleet, "c", given.TARGET, "granted")
    assert fleet.told("c")[:2] == ("append", given.SAFE)
    finish(fleet)
    assert held(fleet) == []


def test_a_node_is_told_nothing_before_it_has_said_what_it_held_and_that_was_decided_on(fleet):
    assert not restoring.may_be_told(fleet.state, "c")
    before = fleet.unit("c").override_position
    said = facts.DirectiveHeld(
        restored_as=NEW_LOG,
        incarnation="log-1",
        generation=900,
        units=(facts.HeldUnit(unit=fleet.id("c"), form="append", value=given.TARGET, code="x"),),
    )
    fleet.record(said, "node:c")
    assert not restoring.may_be_told(fleet.state, "c")
    fleet.settle()
    assert fleet.unit("c").override_position > before
    assert restoring.may_be_told(fleet.state, "c")


def test_a_node_that_held_what_the_log_says_is_told_at_once(fleet):
    before = fleet.unit("c").override_position
    says_it_held(fleet, "c", given.SAFE, "no_rollout")
    assert restoring.may_be_told(fleet.state, "c")
    assert fleet.unit("c").override_position == before


def test_what_was_said_after_an_earlier_restore_counts_for_nothing(fleet):
    says_it_held(fleet, "a", given.SAFE, "pinned_off", restored_as="log-1b")
    assert not restoring.may_be_told(fleet.state, "a")
    assert fleet.told("a") == ("append", given.TARGET, "granted")


def test_of_the_ranks_of_a_unit_the_most_careful_word_stands(fleet):
    unit = fleet.id("a")
    says_it_held(fleet, "b", None, "released", unit=unit)
    says_it_held(fleet, "a", given.SAFE, "pinned_off")
    assert fleet.told("a")[:2] == ("untouched", None)


def test_a_unit_that_this_log_never_saw_is_decided_by_the_rules(fleet):
    says_it_held(fleet, "c", given.TARGET, "granted", unit="gone:1")
    assert restoring.may_be_told(fleet.state, "c")


def test_a_retired_machine_is_not_waited_for(fleet):
    fleet.orders(commands.RetireNode(node="c", reason="gone"))
    assert "c" not in fleet.state.restore.waiting


def test_what_is_more_careful_and_would_not_start_is_not_appended(fleet):
    fleet.launch("a", build=given.build(torch_cuda="12.6"))
    says_it_held(fleet, "a", given.SAFE, "pinned_off")
    assert fleet.told("a")[:2] == ("untouched", None)


def test_a_unit_born_after_the_backup_stays_as_careful_as_it_was(fleet):
    unit = newborn("d")
    fleet.orders(commands.AbortRollout(rollout="r1", reason="a wider one follows"))
    fleet.rollout("all")
    fleet.node("d")
    says_it_held(fleet, "d", given.SAFE, "pinned_off", unit=unit)
    finish(fleet)
    assert held(fleet) == []  # nothing to accept: this log does not know it
    fleet.launch("d")
    assert (fleet.decided("d").value, fleet.decided("d").code) == (
        given.SAFE,
        "held_before_restore",
    )
    ((code, units, change),) = held(fleet)
    assert (code, units) == ("restore", ["d"])
    fleet.orders(commands.AcceptChange(change=change, reason="it was a test"), by="bob")
    assert fleet.told("d") == ("append", given.TARGET, "granted")


def test_a_unit_born_after_the_backup_waits_for_nobody_where_this_log_says_the_same(fleet):
    unit = newborn("d")
    fleet.node("d")
    says_it_held(fleet, "d", given.SAFE, "no_rollout", unit=unit)
    finish(fleet)
    fleet.launch("d")
    assert fleet.told("d") == ("append", given.SAFE, "no_rollout")
    assert held(fleet) == []
    fleet.orders(commands.AbortRollout(rollout="r1", reason="a wider one follows"))
    fleet.rollout("all")
    assert fleet.told("d") == ("append", given.TARGET, "granted")


def test_what_a_node_held_stands_until_it_launches_anew_though_the_launch_was_lost(fleet):
    fleet.instance("a", launch_id="lost-with-the-log")
    says_it_held(fleet, "a", given.SAFE, "pinned_off")
    assert fleet.told("a") == ("append", given.SAFE, "held_before_restore")


def test_a_server_born_after_the_backup_stays_as_careful_though_its_launch_is_lost(fleet):
    fleet.orders(commands.AbortRollout(rollout="r1", reason="a wider one follows"))
    fleet.rollout("all")
    fleet.node("d")
    fleet.instance("d", launch_id="lost-with-the-log")
    says_it_held(fleet, "d", given.SAFE, "pinned_off")
    finish(fleet)
    fleet.launch("d")
    assert fleet.decided("d").value == given.SAFE
    assert [one[:2] for one in held(fleet)] == [("restore", ["d"])]


def test_one_that_launches_before_the_restore_is_finished_waits_for_a_person_too(fleet):
    fleet.node("d")
    says_it_held(fleet, "d", given.SAFE, "pinned_off", unit=newborn("d"))
    fleet.launch("d")  # nothing starts anyway: that this log says the same shows nothing
    assert fleet.decided("d").code == "no_rollout"
    finish(fleet)
    assert [one[:2] for one in held(fleet)] == [("restore", ["d"])]


def test_a_restore_of_which_every_node_has_spoken_says_so(fleet):
    for node in (*given.POOL, "a", "b", "c"):
        says_it_held(fleet, node, None, "x", unit="gone:1")
    (waiting,) = [wait for wait in fleet.waits if wait.code == "restore"]
    assert waiting.sentence.endswith("Every node has said what it held.")
