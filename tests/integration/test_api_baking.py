"""With every answer to a node: of which of its servers an interval of a bake counts now."""

from __future__ import annotations

from tests import controller_bench as cb

from smgate.domain import policy
from smgate.wire import directive

TARGET = policy.KIMI_K3.target
PLAN = {"id": "r1", "gate": cb.GATE, "sm": "10.7", "waves": [{"percent": 100}], "bake_s": 120}


def qualify(bench: cb.Bench) -> None:
    """One node of the pool passes every check, which is enough here."""
    bench.agreed(bench.token("approver", "alice"), "policy_publish", policy={"min_gpu_sets": 1})
    pool = bench.enrol("p1")
    pool.send(cb.reported(pool=True))
    launch = cb.launch("p", node="p1")
    passed = {
        "type": "check_finished",
        "outcome": "passed",
        "reason": "ok",
        "sm": "10.7",
        "gpu_uuids": [launch["gpus"][0]["uuid"]],
        "build": launch["build"],
        "layout": launch["layout"],
        "probe_version": "1",
        "negative_control": "caught",
    }
    pool.send(*({**passed, "check": name} for name in policy.KIMI_K3.required_checks))


def serves(node: cb.Machine, name: str, runner: str) -> None:
    """A server of the node's only launch says what it runs."""
    uuids = [cb.launch("any", node=node.name)["gpus"][0]["uuid"]]
    node.send(
        {
            "type": "instance_changed",
            "instance_id": name,
            "state": "serving",
            "gpu_uuids": uuids,
            "launch_id": f"{name}-2",
        },
        {
            "type": "effective_seen",
            "instance_id": name,
            "runner": runner,
            "a2a": "none",
            "source": "server_info",
        },
    )


def baking(bench: cb.Bench, node: cb.Machine, *, generation: int = 0) -> tuple[int, str]:
    """Status and header of an answer."""
    bench.lead()
    answer = bench.http.get(
        f"/v1/agent/directive?generation={generation}&wait=0", headers=node.headers
    )
    return answer.status_code, answer.headers[directive.BAKING_HEADER]


def test_an_answer_names_the_servers_that_bake_from_the_target_on_until_it_is_enough(
    bench: cb.Bench,
) -> None:
    alice, bob = bench.token("approver", "alice"), bench.token("approver", "bob")
    bench.agreed(alice, "gate_mode", gate=cb.GATE, sm="10.7", mode="enforce")
    qualify(bench)
    node, other = bench.enrol("n1"), bench.enrol("n2")
    node.launch("k3-1")
    other.launch("o-1")
    assert baking(bench, node) == (200, "")
    bench.command(alice, "rollout_propose", plan=PLAN | {"select": {"units": ["n1"]}})
    bench.command(bob, "rollout_approve", rollout="r1")
    bench.command(alice, "rollout_start", rollout="r1")
    bench.lead()
    node.launch("k3-2")
    bench.lead()
    serves(node, "k3", "marlin")
    assert baking(bench, node) == (200, "")  # granted, and not yet on the target
    serves(node, "k3", TARGET)
    assert baking(bench, node) == (200, "k3")
    generation = node.directive()["generation"]  # type: ignore[index]
    assert baking(bench, node, generation=generation) == (204, "k3")
    assert baking(bench, other)[1] == ""

    served = {"type": "bake_interval", "instance_id": "k3", "requests": 9, "failures": 0}
    node.send(served | {"interval_s": 60})
    assert baking(bench, node, generation=generation)[1] == "k3"
    node.send(served | {"interval_s": 60})
    assert baking(bench, node, generation=generation)[1] == ""
