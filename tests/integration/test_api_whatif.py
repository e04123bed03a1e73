"""Another policy over the real log, asked by HTTP."""

from __future__ import annotations

from tests import controller_bench as cb


def ask(bench: cb.Bench, policy: cb.Json, since: str) -> tuple[int, cb.Json]:
    answer = bench.http.post(
        "/v1/policy/whatif",
        headers=cb.bearer(bench.token("viewer")),
        json={"policy": policy, "since": since},
    )
    return answer.status_code, answer.json()


def test_another_policy_is_tried_on_the_log_and_nothing_is_appended(bench: cb.Bench) -> None:
    for name in ("n1", "n2"):
        bench.enrol(name).launch(f"{name}-1")
        bench.lead()
    bench.agreed(bench.token("approver"), "gate_mode", gate=cb.GATE, sm="10.7", mode="enforce")
    bench.lead()
    head = bench.service.store.head()
    for since in ("1", str(head.position)):
        status, body = ask(bench, {}, since)
        assert (status, body["differing"]) == (200, [])
        assert body["as_of_position"] == head.position
    assert bench.service.store.head() == head
    assert body["exposed_units"][-1]["then"] == body["exposed_units"][-1]["would"] == 0


def test_what_cannot_be_tried_is_refused_with_a_code(embedded: cb.Bench) -> None:
    assert ask(embedded, {"min_gpu_sets": 0}, "1")[1]["error"]["code"] == "bad_policy"
    assert ask(embedded, {"nonsense": 1}, "1")[1]["error"]["code"] == "bad_policy"
    assert ask(embedded, {}, "999999")[1]["error"]["code"] == "unknown_position"
    assert ask(embedded, {}, "2999-01-01T00:00:00Z")[1]["error"]["code"] == "bad_moment"
