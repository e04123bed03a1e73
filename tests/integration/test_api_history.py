"""What happened to a unit, read off the log."""

from __future__ import annotations

import pytest
from tests import controller_bench as cb

SERVING = {"type": "instance_changed", "instance_id": "k3", "state": "serving"}
EFFECTIVE = {
    "type": "effective_seen",
    "instance_id": "k3",
    "runner": "flashinfer_mxfp4",
    "a2a": "none",
    "source": "server_info",
    "architecture": cb.ARCHITECTURE,
    "mxfp4": True,
}


def unit_of(bench: cb.Bench, node: str) -> str:
    [name] = list(bench.service.folder.book.units(node))
    return name


def serve(machine: cb.Machine, launch_id: str) -> None:
    gpus = [f"GPU-{machine.name}-0"]
    machine.send({**SERVING, "launch_id": launch_id, "gpu_uuids": gpus}, EFFECTIVE)
    machine.bench.lead()


def two_servers(bench: cb.Bench) -> tuple[cb.Machine, cb.Machine]:
    """Two nodes with a server each; the first ran BF16 for a while and was pinned off."""
    ours, other = bench.enrol("n1"), bench.enrol("n2")
    for machine in (ours, other):
        machine.launch(f"{machine.name}-1")
        bench.lead()
        serve(machine, f"{machine.name}-1")
    ours.send({"type": "memory_fallback_seen", "instance_id": "k3", "phase": "active"})
    bench.lead()
    bench.command(bench.token("operator", "alice"), "unit_pin", unit="n1", direction="off")
    bench.lead()
    return ours, other


def test_a_units_history_has_what_happened_to_it_in_log_order_and_nothing_else(
    bench: cb.Bench,
) -> None:
    _, other = two_servers(bench)
    other.send({"type": "memory_fallback_seen", "instance_id": "k3", "phase": "active"})
    body = bench.get(bench.token("viewer"), "units/n1/history")
    rows = body["items"]
    assert body["unit"] == unit_of(bench, "n1")
    assert [row["type"] for row in rows] == [
        "launch_planned",
        "override_set",
        "instance_changed",
        "effective_seen",
        "adopted",
        "override_set",
        "memory_fallback_seen",
        "pin_set",
        "override_set",
    ]
    assert rows == sorted(rows, key=lambda row: row["position"])
    log = {record.position: record for record in bench.events()}
    assert all(log[row["position"]].type == row["type"] for row in rows)
    assert not any("n2" in row["actor"] or "n2" in row["says"] for row in rows)
    decided = next(row for row in rows if row["type"] == "override_set")
    assert (decided["form"], decided["code"], decided["would"]["value"]) == (
        "keep",
        "observe",
        "marlin",
    )
    assert rows[7]["actor"] == "operator:alice"
    assert (body["left_out"], body["position"]) == (0, bench.service.store.head().position)


def test_a_history_is_bounded_and_says_how_much_earlier_is_left_out(bench: cb.Bench) -> None:
    two_servers(bench)
    viewer = bench.token("viewer")
    rows = bench.get(viewer, "units/n1/history")["items"]
    few = bench.get(viewer, "units/n1/history?limit=3")
    assert (few["items"], few["left_out"]) == (rows[-3:], len(rows) - 3)
    fallback = next(row for row in rows if row["type"] == "memory_fallback_seen")
    since = bench.get(viewer, f"units/n1/history?since={fallback['position']}")
    assert since["items"] == rows[rows.index(fallback) :]
    assert since["left_out"] == 0


def test_a_server_of_another_unit_under_the_same_name_is_not_told_of(bench: cb.Bench) -> None:
    machine = bench.enrol("n1")
    machine.launch("l1")
    bench.lead()
    serve(machine, "l1")
    first = unit_of(bench, "n1")
    gpus = [{"uuid": "GPU-n1-other", "sm": "10.7"}]
    machine.launch("l2", gpus=gpus)
    bench.lead()
    machine.send(
        {**SERVING, "launch_id": "l2", "gpu_uuids": ["GPU-n1-other"]},
        {**EFFECTIVE, "runner": "marlin"},
    )
    bench.lead()
    rows = bench.get(bench.token("viewer"), f"units/{first}/history")["items"]
    says = [row["says"] for row in rows if row["type"] == "effective_seen"]
    assert says == ["k3 runs (flashinfer_mxfp4, none), by its server_info"]


def test_what_had_happened_and_arrived_later_is_no_part_of_what_was_known_then(
    bench: cb.Bench,
) -> None:
    machine, _ = two_servers(bench)
    viewer = bench.token("viewer")
    then = bench.service.store.head().position
    before = bench.get(viewer, f"units/n1/why?at={then}")
    assert (before["as_of_position"], before["arrived_later"]) == (then, [])
    machine.send({"type": "gpu_fault_seen", "gpu_uuid": "GPU-n1-0", "xid": 79})
    bench.lead()
    after = bench.get(viewer, f"units/n1/why?at={then}")
    [late] = after.pop("arrived_later")
    assert late["type"] == "gpu_fault_seen"
    assert late["position"] > then
    assert late["happened"] < late["at"]
    for answer in (before, after):
        answer.pop("arrived_later", None)
        answer.pop("arrived_later_looked_through")
    assert after == before, "what is learnt later does not change what was known"
    now = bench.get(viewer, "units/n1/why")
    assert "arrived_later" not in now


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("units/nobody/history", 404, "unknown_unit"),
        ("units/n1/history?since=99999", 404, "unknown_position"),
        ("units/n1/history?since=yesterday", 422, "bad_moment"),
    ],
)
def test_what_nobody_can_answer_is_refused_with_a_code(
    embedded: cb.Bench, path: str, status: int, code: str
) -> None:
    embedded.enrol("n1").launch("l1")
    embedded.lead()
    answer = embedded.http.get(f"/v1/{path}", headers=cb.bearer(embedded.token("viewer")))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_plan_is_looked_at_by_anybody_and_nothing_is_appended(bench: cb.Bench) -> None:
    two_servers(bench)
    before = bench.service.store.head()
    plan = {"id": "r1", "gate": cb.GATE, "sm": "10.7", "waves": [{"count": 1}, {"percent": 100}]}
    viewer = cb.bearer(bench.token("viewer"))
    answer = bench.http.post("/v1/rollouts/plan", headers=viewer, json={"plan": plan})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["eligible_units"], body["blocked_by_code"]) == (0, {"observe": 2})
    assert body["as_of_position"] == before.position
    assert bench.service.store.head() == before
    with bench.service.folder.at_head() as fleet:
        assert fleet.rollouts == {}
    bad = bench.http.post("/v1/rollouts/plan", headers=viewer, json={"plan": {**plan, "sm": "9"}})
    assert (bad.status_code, bad.json()["error"]["code"]) == (422, "bad_policy")
    odd = bench.http.post("/v1/rollouts/plan", headers=viewer, json={"plan": plan, "x": 1})
    assert (odd.status_code, odd.json()["error"]["code"]) == (422, "bad_plan")


def test_what_people_ordered_is_found_by_person_type_and_time(bench: cb.Bench) -> None:
    two_servers(bench)
    alice, bob = bench.token("approver", "alice"), bench.token("approver", "bob")
    bench.command(bob, "freeze_declare", id="holiday", idempotency_key="as the CLI does")
    bench.agreed(alice, "freeze_lift", id="holiday")
    viewer = bench.token("viewer")
    rows = bench.get(viewer, "log/rulings")["items"]
    assert [row["type"] for row in rows][-5:] == [
        "pin_set",
        "freeze_declared",
        "change_asked",
        "change_accepted",
        "freeze_lifted",
    ]
    assert "node_enrolled" not in {row["type"] for row in rows}, "a join token is no person"
    assert {"by": "bob", "author": None}.items() <= rows[-4].items()
    assert rows[-4]["reason"] == rows[-4]["data"]["reason"]
    assert {"by": "second", "author": "alice"}.items() <= rows[-2].items()
    of_alice = bench.get(viewer, "log/rulings?by=alice")["items"]
    assert {row["by"] for row in of_alice} == {"alice"}
    assert [row["type"] for row in of_alice] == ["pin_set", "change_asked"]
    lifted = bench.get(viewer, "log/rulings?type=freeze_lifted")["items"]
    assert [row["by"] for row in lifted] == ["second"]
    since = bench.get(viewer, f"log/rulings?since={rows[-2]['position']}")["items"]
    assert since == rows[-2:]
    newest = bench.get(viewer, "log/rulings?limit=1")
    assert (newest["items"], newest["left_out"]) == (rows[-1:], len(rows) - 1)


def test_an_approval_is_found_with_who_had_proposed_it(bench: cb.Bench) -> None:
    plan = {"id": "r1", "gate": cb.GATE, "sm": "10.7", "waves": [{"count": 1}]}
    bench.command(bench.token("operator", "alice"), "rollout_propose", plan=plan)
    bench.command(bench.token("approver", "bob"), "rollout_approve", rollout="r1")
    path = "log/rulings?type=rollout_approved"
    [row] = bench.get(bench.token("viewer"), path)["items"]
    assert (row["by"], row["author"]) == ("bob", "alice")


def test_two_plans_beside_each_other_are_looked_at_and_nothing_is_appended(bench: cb.Bench) -> None:
    two_servers(bench)
    alice = bench.token("approver", "alice")
    plan = {"id": "r1", "gate": cb.GATE, "sm": "10.7", "waves": [{"count": 1}, {"percent": 100}]}
    bench.command(alice, "rollout_propose", plan=plan)
    before = bench.service.store.head()
    viewer = cb.bearer(bench.token("viewer"))

    def diff(**asked: object) -> tuple[int, cb.Json]:
        answer = bench.http.post("/v1/rollouts/diff", headers=viewer, json=asked)
        return answer.status_code, answer.json()

    _, body = diff(before="r1", plan={**plan, "bake_s": 60})
    assert [one["field"] for one in body["changed"]] == ["bake_s"]
    assert len(body["waves"]) == 2
    assert diff(before="r1", after="r1")[1]["changed"] == []
    for asked, status, code in [
        ({"before": "r1"}, 422, "bad_plan"),
        ({"before": "r1", "after": "r1", "plan": plan}, 422, "bad_plan"),
        ({"before": "r9", "after": "r1"}, 404, "unknown_rollout"),
        ({"before": "r1", "plan": {**plan, "sm": "9"}}, 422, "bad_policy"),
    ]:
        answer = diff(**asked)
        assert (answer[0], answer[1]["error"]["code"]) == (status, code)
    assert bench.service.store.head() == before
