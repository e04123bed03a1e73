"""Taking back over HTTP: the order in the directive, and the three numbers as they move."""

from __future__ import annotations

from tests import controller_bench as cb

UNIT = "n1"
TARGET = "flashinfer_mxfp4"


def serving(launch_id: str, runner: str) -> list[cb.Json]:
    """A server of a launch serves, and attests what it runs."""
    uuids = [cb.launch(launch_id, node="n1")["gpus"][0]["uuid"]]
    changed = {"instance_id": "k3", "state": "serving", "gpu_uuids": uuids, "launch_id": launch_id}
    seen = {"instance_id": "k3", "runner": runner, "a2a": "none", "source": "server_info"}
    return [{"type": "instance_changed"} | changed, {"type": "effective_seen"} | seen]


def numbers(bench: cb.Bench, viewer: str) -> tuple[int, int, int]:
    """Decided, told and safe, as the API and as the metrics have them."""
    one = bench.get(viewer, "drains")["sms"]["10.7"]
    page = bench.http.get("/metrics").text
    for stage, count in one.items():
        assert f'smgate_take_back_units{{sm="10.7",stage="{stage}"}} {float(count)}' in page
    return one["decided"], one["told"], one["safe"]


def test_an_order_reaches_the_node_signed_and_the_three_numbers_follow_what_happens(
    bench: cb.Bench,
) -> None:
    node = bench.enrol("n1")
    alice, viewer = bench.token("approver", "alice"), bench.token("viewer", "vera")
    bench.agreed(alice, "gate_mode", gate=cb.GATE, sm="10.7", mode="enforce")
    bench.agreed(alice, "policy_publish", policy={"min_serving_share": 0})
    node.launch("l0", restarter="hook")
    bench.lead()
    bench.agreed(alice, "unit_pin", unit=UNIT, direction="on")
    bench.lead()
    node.launch("l1", restarter="hook")
    bench.lead()
    node.send(*serving("l1", TARGET))
    bench.lead()
    before = node.directive()
    assert before is not None
    assert "drains" not in before
    assert bench.get(viewer, "drains")["items"] == []

    bench.command(bench.token("operator", "olga"), "unit_pin", unit=UNIT, direction="off")
    bench.lead()
    (ordered,) = bench.events("drain_ordered")
    assert numbers(bench, viewer) == (1, 0, 0)
    told = node.directive(before["generation"])
    assert told is not None
    (order,) = told["drains"]
    assert (order["order"], order["launch_ids"]) == (ordered.position, ["l1"])
    assert order["instances"] == {"k3": 0}
    assert told["units"][0]["value"] == "marlin"
    node.directive(told["generation"])
    assert numbers(bench, viewer) == (1, 1, 0)
    (row,) = bench.get(viewer, "drains")["items"]
    assert (row["restart"], row["order"], row["owner"]) == ("ordered", ordered.position, "node")

    ended = {"order": order["order"], "unit": order["unit"], "outcome": "succeeded", "exit_code": 0}
    node.send({"type": "drain_hook_ended"} | ended)
    node.launch("l2", restarter="hook")
    bench.lead()
    node.send(*serving("l2", "marlin"))
    bench.lead()
    assert len(bench.events("drain_finished")) == 1
    after = node.directive(told["generation"])
    assert after is not None
    assert "drains" not in after
    node.directive(after["generation"])
    assert numbers(bench, viewer) == (1, 1, 1)
    said = [row["says"] for row in bench.get(viewer, f"units/{UNIT}/history")["items"]]
    assert any("ordered to restart onto the safe value (pinned_off)" in one for one in said)
    assert any("the drain hook of order" in one for one in said)
