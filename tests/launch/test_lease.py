"""A target that had not baked holds for one lease after the controller was heard, on this node's clocks."""

import json
import time

import pytest
from tests.launch import stand_ins
from tests.launch.asking import ENFORCE, SAFE, TARGET, decide, given_for, serve

from smgate_agent.launch import contact, kernel_key

LEASE = 60
HELD = {"issued_at_us": 5_000_000}


def moment(at_s, boot_s, boot="boot-1"):
    return {"at_us": int(at_s * 1e6), "boot_id": boot, "boot_us": int(boot_s * 1e6)}


@pytest.mark.parametrize(
    ("last", "now", "seconds"),
    [
        (moment(1_000, 10), moment(1_060, 70), 60),
        (moment(1_000, 10), moment(9_999_999, 70), 60),  # the wall clock was set forward
        (moment(1_000, 10), moment(1, 70), 60),  # and back
        (moment(1_000, 10), moment(1_060, 5, "boot-2"), 60),  # restarted: the wall clock counts
        (moment(1_000, 10), moment(400, 5, "boot-2"), 0),  # set back over a restart: never early
        (moment(1_000, 10), moment(1_000, 10), 0),
        (moment(1_000, 70), moment(1_060, 10), 0),
        (moment(1_000, 0, ""), moment(1_060, 0, ""), 60),  # no clock of the boot to be had
    ],
    ids=str,
)
def test_time_is_counted_by_the_clock_that_cannot_be_set(last, now, seconds):
    assert contact.unheard_s(last, HELD, now) == seconds


@pytest.mark.parametrize(
    "noted",
    [None, {}, {"at_us": "x", "boot_us": 1}, {"at_us": 1}, {"at_us": -1, "boot_us": 1}],
    ids=str,
)
def test_where_nothing_usable_was_noted_the_directives_own_time_counts(noted):
    assert contact.unheard_s(noted, HELD, moment(65, 0)) == 60
    assert contact.unheard_s(noted, HELD, moment(1, 0)) == 0
    assert contact.unheard_s(noted, None, moment(65, 0)) is None


def test_this_machine_tells_its_boot_and_both_clocks():
    before, after = contact.now(), contact.now()
    assert before["boot_id"] == after["boot_id"] != ""
    assert 0 < before["boot_us"] <= after["boot_us"]
    assert abs(before["at_us"] - time.time_ns() // 1_000) < 60_000_000


# The gate as it runs


@pytest.fixture
def leased(sm107, k3):
    """A node that was told the target under a lease, and hears nobody now."""
    with stand_ins.Controller(
        stand_ins.honest(decide("append", "flashinfer_mxfp4", "granted"))
    ) as it:
        sm107.enroll(it.url)
        assert serve(sm107, k3) == TARGET
        (launch,) = it.launches()
    unit = stand_ins.entry(
        launch,
        *("append", "flashinfer_mxfp4", "granted"),
        unit=kernel_key.unit_id("node-a", launch),
        given_for=given_for(launch),
        lease_s=LEASE,
    )
    sm107.hold(stand_ins.directive(unit, modes=ENFORCE))
    sm107.enroll(None)
    return sm107


def note(node, **changes):
    (node.state / "contact.json").write_text(json.dumps({**contact.now(), **changes}))


def test_the_gate_notes_when_it_heard_the_controller(leased, k3):
    assert serve(leased, k3) == TARGET
    assert contact.unheard_s(
        json.loads((leased.state / "contact.json").read_text()), None, contact.now()
    ) < LEASE  # fmt: skip


def test_after_one_lease_the_next_launch_takes_the_safe_value(leased, k3):
    now = contact.now()
    note(leased, boot_us=now["boot_us"] - LEASE * 1_000_000)
    assert serve(leased, k3) == SAFE
    assert "lease_expired, by local rule" in leased.stderr
    note(leased)
    assert serve(leased, k3) == TARGET


@pytest.mark.parametrize("years", [-30, 30])
def test_a_wall_clock_that_was_set_ends_no_lease_within_a_boot(leased, k3, years):
    note(leased, at_us=max(0, contact.now()["at_us"] + years * 31_536_000 * 1_000_000))
    assert serve(leased, k3) == TARGET


def test_over_a_restart_of_the_machine_the_wall_clock_counts(leased, k3):
    now = contact.now()
    note(leased, boot_id="another", at_us=now["at_us"] - (LEASE + 1) * 1_000_000)
    assert serve(leased, k3) == SAFE
    note(leased, boot_id="another", at_us=now["at_us"] + LEASE * 1_000_000)
    assert serve(leased, k3) == TARGET


def test_a_note_that_cannot_be_read_is_no_contact(leased, k3):
    (leased.state / "contact.json").write_text("{")
    assert serve(leased, k3) == SAFE
    assert "lease_expired" in leased.stderr


def test_with_the_controller_there_no_lease_is_asked_about(leased, k3):
    note(leased, boot_us=0)
    with stand_ins.Controller(
        stand_ins.honest(decide("append", "flashinfer_mxfp4", "granted"))
    ) as it:
        leased.enroll(it.url)
        assert serve(leased, k3) == TARGET
