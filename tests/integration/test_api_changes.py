"""Changes that wait for another person, over HTTP: asked, looked at, accepted, done alone, undone."""

from __future__ import annotations

import concurrent.futures

import pytest
from tests import controller_bench as cb

from smgate.log import port
from smgate.service import records

ENFORCE = {"gate": cb.GATE, "sm": "10.7", "mode": "enforce"}


def mode(bench: cb.Bench) -> str:
    return str(bench.get(bench.token("viewer"), "gates")["items"][0]["modes"]["10.7"])


def test_what_widens_waits_and_is_done_when_another_accepts(bench: cb.Bench) -> None:
    bench.enrol("n1").launch("l1")
    bench.lead()
    alice, bob = bench.token("operator", "alice"), bench.token("approver", "bob")
    asked = bench.command(alice, "gate_mode", **ENFORCE)
    assert [event["type"] for event in asked["events"]] == ["change_asked"]
    change = asked["waits"]["change"]
    assert change == f"c{asked['position']}"
    assert mode(bench) == "observe"
    [listed] = bench.get(bob, "changes")["items"]
    assert (listed["id"], listed["kind"], listed["by"]) == (change, "asked", "alice")
    shown = bench.get(bob, f"changes/{change}")
    assert (shown["state"], shown["would_refuse"]) == ("open", None)
    assert shown["position"] == bench.service.store.head().position
    assert shown["preview"]["changed_units"] == 1
    looked = bench.command(bob, "change_accept", change=change, dry_run=True)
    assert looked["preview"]["changed_units"] == 1
    done = bench.command(bob, "change_accept", change=change)
    assert [event["type"] for event in done["events"]] == ["change_accepted", "gate_mode_set"]
    assert mode(bench) == "enforce"
    assert bench.get(bob, "changes")["items"] == []
    assert bench.get(bob, f"changes/{change}")["accepted_by"] == "bob"


def test_asking_again_is_the_same_change_with_a_key_or_without(bench: cb.Bench) -> None:
    alice = bench.token("approver", "alice")
    first = bench.command(alice, "gate_mode", **ENFORCE, idempotency_key="k")
    again = bench.command(alice, "gate_mode", **ENFORCE, idempotency_key="k")
    assert (again["repeated"], again["waits"]) == (True, first["waits"])
    other = bench.command(bench.token("approver", "bob"), "gate_mode", **ENFORCE)
    assert (other["changed"], other["events"], other["waits"]) == (False, [], first["waits"])
    assert len(bench.events("change_asked")) == 1


def test_of_many_who_accept_at_once_one_does_it(bench: cb.Bench) -> None:
    asked = bench.command(bench.token("operator", "alice"), "gate_mode", **ENFORCE)
    change = asked["waits"]["change"]
    tokens = [bench.token("approver", f"p{number}") for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda token: bench.refused(token, "change_accept", change=change), tokens)
        )
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409]
    assert len(bench.events("gate_mode_set")) == 1


def test_trap_t21_who_asked_may_not_accept_even_past_the_domain(bench: cb.Bench) -> None:
    alice = bench.token("approver", "alice")
    asked = bench.command(alice, "gate_mode", **ENFORCE)
    change = asked["waits"]["change"]
    status, body = bench.refused(alice, "change_accept", change=change)
    assert (status, body["error"]["code"]) == (403, "same_person")
    [record] = bench.events("change_asked")
    forged = port.NewRecord(
        stream=records.OPERATORS,
        version=bench.service.store.stream_version(records.OPERATORS) + 1,
        type="change_accepted",
        schema_version=1,
        occurred_at_us=1,
        actor=record.actor,
        counter_actor=record.actor,
        data=b'{"accepted_by":"alice","author":"alice","change":"c1","reason":"x"}',
    )
    with pytest.raises(port.SamePersonError):
        bench.service.store.append([forged], writer="past the domain")
    bench.command(bench.token("approver", "bob"), "change_accept", change=change)
    [accepted] = bench.events("change_accepted")
    assert (accepted.actor, accepted.counter_actor) == ("operator:bob", "operator:alice")


def test_done_alone_it_is_in_force_and_withdrawn_it_is_undone(bench: cb.Bench) -> None:
    alice = bench.token("approver", "alice")
    status, body = bench.refused(
        bench.token("operator", "eve"), "gate_mode", **ENFORCE, break_glass_s=60
    )
    assert (status, body["error"]["code"]) == (403, "forbidden")
    done = bench.command(alice, "gate_mode", **ENFORCE, break_glass_s=60)
    assert [event["type"] for event in done["events"]] == ["break_glass_used", "gate_mode_set"]
    assert done["waits"]["kind"] == "break_glass"
    assert mode(bench) == "enforce"
    change = done["waits"]["change"]
    assert bench.get(alice, f"changes/{change}")["until"] == done["waits"]["until"]
    [waiting] = [w for w in bench.get(alice, "waits")["items"] if w["subject"] == change]
    assert waiting["code"] == "break_glass"
    bench.command(bench.token("operator", "eve"), "change_withdraw", change=change)
    assert mode(bench) == "observe"


def test_an_unknown_change_is_not_found(bench: cb.Bench) -> None:
    alice = bench.token("approver", "alice")
    assert bench.refused(alice, "change_accept", change="c1")[0] == 404
    answer = bench.http.get("/v1/changes/c1", headers=cb.bearer(alice))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_change")


def test_a_change_that_cannot_be_done_any_more_says_so(bench: cb.Bench) -> None:
    alice, bob = bench.token("operator", "alice"), bench.token("approver", "bob")
    plan = {"id": "r1", "gate": cb.GATE, "sm": "10.7", "waves": [{"percent": 100}]}
    bench.command(alice, "rollout_propose", plan=plan)
    bench.command(bob, "rollout_approve", rollout="r1")
    started = bench.command(alice, "rollout_start", rollout="r1")
    assert started["waits"] is None  # its two people are all it needs
    bench.command(alice, "rollout_pause", rollout="r1")
    resume = bench.command(alice, "rollout_resume", rollout="r1")
    change = resume["waits"]["change"]
    bench.command(alice, "rollout_abort", rollout="r1")
    shown = bench.get(bob, f"changes/{change}")
    [listed] = bench.get(bob, "changes")["items"]
    for row in (shown, listed):
        assert row["state"] == "impossible_now"
        assert "aborted" in row["would_refuse"]
        assert row["next_step"] == f"smgate change withdraw {change}"
    status, body = bench.refused(bob, "change_accept", change=change)
    assert (status, body["error"]["code"]) == (409, "rollout_aborted")


def test_the_history_of_a_unit_tells_what_was_asked_for_it_and_what_was_done_alone(
    bench: cb.Bench,
) -> None:
    unit = bench.enrol("n1").launch("l1")["unit"]
    bench.enrol("n2").launch("l2")
    bench.lead()
    alice = bench.token("approver", "alice")
    bench.command(alice, "unit_pin", unit="n1", direction="on")
    bench.command(alice, "unit_pin", unit="n2", direction="on")
    bench.command(alice, "unit_pin", unit="n1", direction="on", break_glass=True, break_glass_s=60)
    rows = bench.get(alice, f"units/{unit}/history")["items"]
    told = [row["says"] for row in rows if row["type"] in ("change_asked", "break_glass_used")]
    assert told == [
        f"asked: unit pin {unit} on. a test",
        f"alone for 60 s: unit pin {unit} on break-glass. a test",
    ]
