"""What nodes meet: enrolment, facts, launches, directives, over HTTP on real databases."""

from __future__ import annotations

import threading
import time

import pytest
from tests import controller_bench as cb

from smgate.log import verify
from smgate.wire import base
from smgate_agent import delivery


def test_a_machine_becomes_a_node_and_its_fact_is_in_the_log(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    enrolled = bench.events("node_enrolled")
    assert [record.stream for record in enrolled] == ["operators"]
    assert enrolled[0].actor.startswith("operator:join/")
    assert node.token.startswith("smgn_")
    assert b"smgn_" not in b"".join(record.data for record in bench.events())


def test_an_operators_token_does_not_enrol_a_machine(bench: cb.Bench) -> None:
    answer = bench.http.post(
        "/v1/agent/enroll",
        headers=cb.bearer(bench.token("admin")),
        json={"node": "n1", "machine_id": "m", "agent_version": "1"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_kind_of_token")


def test_enrolling_again_ends_the_earlier_credential_and_adds_no_event(bench: cb.Bench) -> None:
    first = bench.enrol("n1")
    second = bench.enrol("n1")
    assert len(bench.events("node_enrolled")) == 1
    answer = bench.http.get("/v1/agent/directive", headers=first.headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_revoked")
    second.send(cb.reported())


def test_a_second_machine_does_not_take_the_name_of_one_that_was_just_heard(
    bench: cb.Bench,
) -> None:
    bench.enrol("n1", machine_id="first")
    answer = bench.http.post(
        "/v1/agent/enroll",
        headers=cb.bearer(bench.join_token()),
        json={"node": "n1", "machine_id": "second", "agent_version": "1"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "node_name_in_use")


def test_facts_are_acknowledged_with_the_head_and_a_repeat_is_too(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    batch = node.batch(cb.reported(), cb.reported(rack="r1"))
    first = bench.http.post("/v1/agent/facts", headers=node.headers, json=batch).json()
    head = bench.service.store.head()
    assert (first["acknowledged_through"], first["repeated"]) == (2, 0)
    assert first["head"] == {"position": head.position, "chain": head.chain.hex()}
    again = bench.http.post("/v1/agent/facts", headers=node.headers, json=batch).json()
    assert (again["acknowledged_through"], again["repeated"]) == (2, 2)
    assert bench.service.store.head().position == head.position
    stored = bench.service.store.read_stream(f"outbox/{node.outbox}")
    assert [(record.version, record.actor) for record in stored] == [(1, "node:n1"), (2, "node:n1")]
    assert b"type" not in stored[0].data  # the domain's own form, not the wire's


@pytest.mark.parametrize(
    ("change", "status", "code", "agent"),
    [
        ({"first": 3}, 409, "sequence_gap", "rewind"),
        ({"first": 9_000_000_000}, 409, "sequence_gap", "rewind"),
        ({"other": True}, 409, "conflict", "renew"),
        ({"swap": True}, 422, "sequence_order", "send_less"),
        ({"node": "n2"}, 403, "not_your_node", "unauthorized"),
        ({"outbox": "foreign"}, 403, "not_your_outbox", "renew"),
        ({"launch": "foreign"}, 403, "not_your_launch", "unauthorized"),
        ({"new_outbox_from": 2}, 409, "sequence_gap", "rewind"),
        ({"unknown": True}, 422, "malformed", "leave_out"),
        ({"many": True}, 422, "malformed", "leave_out"),
        ({"large": True}, 413, "body_too_large", "leave_out"),
    ],
)
def test_a_batch_that_cannot_be_stored_is_refused_and_nothing_is_written(
    bench: cb.Bench, change: dict[str, object], status: int, code: str, agent: str
) -> None:
    node, other = bench.enrol("n1"), bench.enrol("n2")
    other.outbox = "foreign"
    other.send(cb.reported())
    node.send(cb.reported())
    before = bench.service.store.head()
    batch = node.batch(cb.reported(rack="r1"), cb.reported(rack="r2"))
    if "first" in change:
        batch = node.batch(cb.reported(), first=change["first"])  # type: ignore[arg-type]
    if "other" in change:
        batch = node.batch(cb.reported(rack="other"), first=1)
    if "swap" in change:
        batch["facts"].reverse()
    if "node" in change:
        batch["node"] = "n2"
    if "outbox" in change:
        batch["outbox_id"] = "foreign"
    if "launch" in change:
        batch = node.batch(cb.launch("foreign", node="n1"))
    if "new_outbox_from" in change:
        batch = node.batch(cb.reported(), first=2) | {"outbox_id": "new"}
    if "unknown" in change:
        batch = node.batch(cb.reported(of_a_later_agent=1))
    if "many" in change:
        batch["facts"] *= base.BATCH_FACTS_MAX
    if "large" in change:
        batch["outbox_id"] = "x" * base.BODY_BYTES_MAX
    answer = bench.http.post("/v1/agent/facts", headers=node.headers, json=batch)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert bench.service.store.head() == before
    assert delivery.verdict(answer.status_code, answer.content) == agent


def test_the_refusal_of_a_gap_names_the_sequence_that_is_expected(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    node.send(cb.reported(), cb.reported(rack="r"))
    answer = bench.http.post(
        "/v1/agent/facts", headers=node.headers, json=node.batch(cb.reported(), first=7)
    )
    assert "3 is expected" in answer.json()["error"]["message"]


def test_a_refused_batch_does_not_claim_the_outbox_it_names(bench: cb.Bench) -> None:
    node, other = bench.enrol("n1"), bench.enrol("n2")
    batch = node.batch(cb.reported(), first=5) | {"outbox_id": "contested"}
    assert bench.http.post("/v1/agent/facts", headers=node.headers, json=batch).status_code == 409
    other.outbox = "contested"
    other.send(cb.reported())


def test_times_from_any_century_are_stored_and_decide_nothing(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    batch = node.batch(cb.reported(), cb.reported(rack="r"))
    batch["facts"][0]["occurred_at_us"] = 0
    batch["facts"][1]["occurred_at_us"] = 1 << 53
    answer = bench.http.post("/v1/agent/facts", headers=node.headers, json=batch)
    assert answer.status_code == 200
    bench.lead()
    viewer = bench.token("viewer")
    told = bench.get(viewer, "events?limit=500")["items"]
    assert [e["data"].get("rack") for e in told if e["type"] == "node_reported"] == [None, "r"]
    assert not bench.get(viewer, "nodes/n1")["silent"]


def test_a_launch_is_decided_and_answered_with_a_directive_that_verifies(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    bench.agreed(bench.token("approver"), "gate_mode", gate=cb.GATE, sm="10.7", mode="enforce")
    bench.lead()
    asked = node.launch("l1")
    assert asked["directive"] is None
    assert asked["kernel_key"]
    bench.lead()
    answer = node.ask("l1", wait=5)
    told = cb.opened(answer["directive"], node.public_key)
    assert told["node"] == "n1"
    assert told["modes"]["10.7"] == "enforce"
    [unit] = told["units"]
    assert (unit["unit"], unit["form"], unit["value"]) == (answer["unit"], "append", "marlin")
    assert unit["launch_ids"] == ["l1"]
    [override] = bench.events("override_set")
    assert unit["decided_at"] == override.position == told["generation"]


def test_only_an_override_in_the_log_is_told(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    node.launch("l1")
    assert node.ask("l1")["directive"] is None
    assert not bench.events("override_set")
    told = node.directive()
    assert told is not None
    assert told["units"] == []
    bench.lead()
    assert node.ask("l1")["directive"] is not None


def test_a_slow_rank_gets_what_its_launch_was_decided_whatever_changed_since(
    bench: cb.Bench,
) -> None:
    """Both ranks of one launch, though a person pinned the unit between their questions."""
    ranks = {name: bench.enrol(name) for name in ("n1", "n2")}
    approver = bench.token("approver")
    bench.agreed(approver, "gate_mode", gate=cb.GATE, sm="10.7", mode="enforce")
    bench.lead()
    for number, (name, node) in enumerate(ranks.items()):
        node.launch(f"l-{name}", nnodes=2, node_rank=number, unit_name="pair")
    bench.lead()
    told = {}
    for name, node in ranks.items():
        answer = node.ask(f"l-{name}", wait=5)
        units = cb.opened(answer["directive"], node.public_key)["units"]
        [told[name]] = [u for u in units if f"l-{name}" in u["launch_ids"]]
        if name == "n1":
            bench.agreed(approver, "unit_pin", unit="pair", direction="on")
        bench.lead()
    assert told["n1"] == told["n2"]
    [standing, of_launch] = units
    assert (standing["code"], standing["launch_ids"]) == ("pinned_on", [])
    assert of_launch == told["n2"]


def test_another_nodes_launch_is_not_answered(bench: cb.Bench) -> None:
    node, other = bench.enrol("n1"), bench.enrol("n2")
    node.launch("l1")
    for path, code in (("l1", "not_your_launch"), ("nothing", "unknown_launch")):
        answer = bench.http.get(f"/v1/agent/launch/{path}", headers=other.headers)
        assert answer.json()["error"]["code"] == code


def test_reporting_a_launch_again_changes_nothing(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    node.launch("l1")
    position = bench.service.store.head().position
    node.launch("l1")
    assert bench.service.store.head().position == position


def test_a_long_poll_is_answered_when_the_decision_comes(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    node.launch("l1")
    first = node.directive()
    assert first is not None
    found: list[object] = []
    waiting = threading.Thread(
        target=lambda: found.append(node.directive(first["generation"], wait=20))
    )
    waiting.start()
    deadline = time.monotonic() + 10
    while bench.service.waiters.count == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    started = time.monotonic()
    bench.lead()
    waiting.join(20)
    assert time.monotonic() - started < 15
    assert found
    assert found[0]["units"][0]["launch_ids"] == ["l1"]  # type: ignore[index]


def test_a_long_poll_with_nothing_new_ends_with_204(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    generation = node.directive()["generation"]  # type: ignore[index]
    started = time.monotonic()
    assert node.directive(generation, wait=0.2) is None
    assert 0.2 <= time.monotonic() - started < 20
    assert node.directive(generation, wait=0) is None


def test_a_node_that_holds_more_than_the_log_has_is_answered_at_once(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    told = node.directive(generation=10_000, wait=5)
    assert told is not None
    assert told["generation"] < 10_000
    heard = bench.service.contacts.read()["n1"]
    assert heard.held_generation is None  # it is of another log, so it proves nothing


def test_a_poll_is_the_heartbeat_and_says_what_was_told(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    node.launch("l1")
    bench.lead()
    viewer = bench.token("viewer")
    unit = node.ask("l1")["unit"]
    assert bench.get(viewer, f"units/{unit}")["told"] is False
    generation = node.directive()["generation"]  # type: ignore[index]
    node.directive(generation)
    assert bench.get(viewer, f"units/{unit}")["told"] is True
    assert bench.get(viewer, "nodes/n1")["held_generation"] == generation


def test_silence_becomes_an_event_and_a_poll_ends_it(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    standing = bench.get(bench.token("viewer"), "policy")
    policy = {k: v for k, v in standing.items() if k not in ("apiVersion", "position")}
    bench.agreed(bench.token("approver"), "policy_publish", policy=policy | {"silent_after_s": 1})
    deadline = time.monotonic() + 20
    while not bench.events("node_went_silent") and time.monotonic() < deadline:
        time.sleep(0.3)
        bench.lead()
    assert bench.events("node_went_silent")
    while not bench.events("node_returned") and time.monotonic() < deadline:
        node.directive()
        bench.lead()
        time.sleep(0.1)
    assert bench.events("node_returned")


def test_the_log_is_whole_after_all_that(bench: cb.Bench) -> None:
    for number in range(3):
        node = bench.enrol(f"n{number}")
        node.send(cb.reported(), cb.reported(rack="r"))
        node.launch(f"l{number}")
        bench.lead()
    assert verify.verify(bench.service.store).ok
