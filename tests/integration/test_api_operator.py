"""What people meet: commands with roles and two people, lists, reasons, the log, tokens."""

from __future__ import annotations

import concurrent.futures

import pytest
from tests import controller_bench as cb

from smgate.domain import shipped_issues
from smgate.log import port
from smgate.service import handle, records

PLAN = {"id": "r1", "gate": cb.GATE, "sm": "10.7", "waves": [{"count": 1}, {"percent": 100}]}


def test_each_role_may_do_what_it_is_for_and_no_more(bench: cb.Bench) -> None:
    freeze = {"id": "f1"}
    enforce = {"gate": cb.GATE, "sm": "10.7", "mode": "enforce"}
    assert bench.refused(bench.token("viewer"), "freeze_declare", **freeze)[0] == 403
    assert bench.refused(bench.token("operator"), "freeze_declare", **freeze)[0] == 200
    asked = bench.command(bench.token("operator"), "gate_mode", **enforce)
    accept = {"change": asked["waits"]["change"]}
    status, body = bench.refused(bench.token("operator", "eve"), "change_accept", **accept)
    assert (status, body["error"]["code"]) == (403, "forbidden")
    assert bench.refused(bench.token("approver", "eve"), "change_accept", **accept)[0] == 200
    answer = bench.http.post(
        "/v1/tokens",
        headers=cb.bearer(bench.token("approver")),
        json={"kind": "operator", "subject": "x", "role": "viewer"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_a_command_is_one_record_under_its_persons_name(bench: cb.Bench) -> None:
    alice = bench.token("operator", "alice")
    done = bench.command(alice, "freeze_declare", id="f1")
    assert done["changed"]
    assert done["events"] == [
        {"type": "freeze_declared", "id": "f1", "reason": "a test", "until": None}
    ]
    [record] = bench.events("freeze_declared")
    assert (record.actor, record.stream) == ("operator:alice", records.OPERATORS)
    assert record.position == done["position"]
    assert bench.get(alice, "freezes")["items"] == [
        {"id": "f1", "position": done["position"], "reason": "a test", "until": None}
    ]


def test_doing_it_again_changes_nothing(bench: cb.Bench) -> None:
    alice = bench.token("operator", "alice")
    bench.command(alice, "freeze_declare", id="f1")
    again = bench.command(alice, "freeze_declare", id="f1")
    assert (again["changed"], again["events"]) == (False, [])


def test_an_idempotency_key_makes_a_command_safe_to_send_again(bench: cb.Bench) -> None:
    alice = bench.token("approver", "alice")
    first = bench.command(alice, "freeze_declare", id="f1", idempotency_key="k")
    bench.agreed(alice, "freeze_lift", id="f1")
    again = bench.command(alice, "freeze_declare", id="f1", idempotency_key="k")
    assert again == first | {"repeated": True}
    assert bench.get(alice, "freezes")["items"] == []  # it was lifted since, and stays so


def test_a_key_used_for_another_command_does_not_swallow_it(bench: cb.Bench) -> None:
    alice = bench.token("approver", "alice")
    bench.command(alice, "freeze_declare", id="f1", idempotency_key="k")
    other = bench.command(alice, "freeze_declare", id="f2", idempotency_key="k")
    assert (other["changed"], other["repeated"]) == (True, False)
    assert len(bench.get(alice, "freezes")["items"]) == 2


def test_a_dry_run_says_what_would_change_and_writes_nothing(bench: cb.Bench) -> None:
    bench.enrol("n1").launch("l1")
    bench.lead()
    head = bench.service.store.head()
    shown = bench.command(
        bench.token("approver"), "gate_mode", gate=cb.GATE, sm="10.7", mode="enforce", dry_run=True
    )
    assert (shown["changed"], shown["dry_run"]) == (False, True)
    assert shown["events"][0]["type"] == "change_asked"  # and in numbers what it comes to:
    assert shown["preview"]["changed_units"] == 1
    [change] = shown["preview"]["changes"]
    assert (change["before"]["code"], change["after"]["value"]) == ("observe", "marlin")
    assert bench.service.store.head() == head
    assert bench.get(bench.token("viewer"), "gates")["items"][0]["modes"]["10.7"] == "observe"


def test_a_command_for_a_world_that_moved_is_refused_and_one_for_a_quiet_world_is_not(
    bench: cb.Bench,
) -> None:
    alice, node = bench.token("operator"), bench.enrol("n1")
    position = bench.service.store.head().position
    node.send({"type": "weights_seen", "instance_id": "i", "weight_bytes": 5})
    bench.command(alice, "freeze_declare", id="quiet", expected_position=position)
    status, body = bench.refused(alice, "freeze_declare", id="f2", expected_position=position)
    assert (status, body["error"]["code"]) == (409, "world_moved")
    for ahead in (10_000, 1 << 53):
        assert bench.refused(alice, "freeze_declare", id="f", expected_position=ahead)[0] == 409


def test_trap_t21_another_person_may_approve(bench: cb.Bench) -> None:
    alice, bob = bench.token("approver", "alice"), bench.token("approver", "bob")
    bench.command(alice, "rollout_propose", plan=PLAN)
    approved = bench.command(bob, "rollout_approve", rollout="r1")
    [record] = bench.events("rollout_approved")
    assert (record.actor, record.counter_actor) == ("operator:bob", "operator:alice")
    assert approved["position"] == record.position
    assert bench.get(alice, "rollouts/r1")["phase"] == "approved"


def test_trap_t21_the_author_may_not_approve_even_past_the_domain(bench: cb.Bench) -> None:
    alice = bench.token("approver", "alice")
    bench.command(alice, "rollout_propose", plan=PLAN)
    status, body = bench.refused(alice, "rollout_approve", rollout="r1")
    assert (status, body["error"]["code"]) == (403, "same_person")
    [proposed] = bench.events("rollout_proposed")
    forged = port.NewRecord(
        stream=records.OPERATORS,
        version=bench.service.store.stream_version(records.OPERATORS) + 1,
        type="rollout_approved",
        schema_version=1,
        occurred_at_us=1,
        actor=proposed.actor,
        counter_actor=proposed.actor,
        data=b'{"approver":"alice","reason":"x","rollout":"r1"}',
    )
    with pytest.raises(port.SamePersonError):
        bench.service.store.append([forged], writer="past the domain")
    assert not bench.events("rollout_approved")
    assert bench.get(alice, "rollouts/r1")["phase"] == "proposed"


def test_of_two_people_who_propose_the_same_rollout_at_once_one_is_refused(
    bench: cb.Bench,
) -> None:
    tokens = [bench.token("operator", f"p{number}") for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda token: bench.refused(token, "rollout_propose", plan=PLAN), tokens)
        )
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409]
    assert len(bench.events("rollout_proposed")) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"type": "no_such"}, "no command"),
        ({"type": 5}, "no command"),
        ({"id": "f"}, "no command"),
        ({"type": "freeze_declare", "id": "f"}, "reason"),
        ({"type": "freeze_declare", "id": 5, "reason": "r"}, "id"),
        ({"type": "freeze_declare", "id": "f", "reason": "r", "more": 1}, "$.more"),
        ({"type": "freeze_declare", "id": "f" * 201, "reason": "r"}, "$.id"),
        ({"type": "freeze_declare", "id": "f", "reason": "r" * 2001}, "$.reason"),
        ({"type": "freeze_declare", "id": "f\x1b[2J", "reason": "r"}, "control character"),
        ({"type": "freeze_declare", "id": "f", "reason": "r", "dry_run": "yes"}, "dry_run"),
        (
            {"type": "freeze_declare", "id": "f", "reason": "r", "expected_position": 1.5},
            "expected",
        ),
        ({"type": "freeze_declare", "id": "f", "reason": "r", "idempotency_key": ""}, "key"),
        (
            {"type": "rollout_propose", "reason": "r", "plan": PLAN | {"waves": [{"cuont": 1}]}},
            "$.plan.waves[0].cuont",
        ),
        ({"type": "rollout_propose", "reason": "r", "plan": PLAN | {"bake_s": 1 << 60}}, "bake_s"),
        (
            {
                "type": "gate_mode",
                "gate": cb.GATE,
                "sm": "blackwell",
                "mode": "enforce",
                "reason": "r",
            },
            "major.minor",
        ),
    ],
)
def test_a_command_that_says_nothing_sensible_is_refused_with_the_place(
    embedded: cb.Bench, body: dict[str, object], says: str
) -> None:
    before = embedded.service.store.head()
    answer = embedded.http.post(
        "/v1/commands", headers=cb.bearer(embedded.token("approver")), json=body
    )
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert says in error["message"]
    assert error["code"]
    assert error["next_step"]
    assert embedded.service.store.head() == before


def test_every_list_has_items_and_a_position_and_every_item_is_found_by_its_name(
    bench: cb.Bench,
) -> None:
    node = bench.enrol("n1")
    node.send(cb.reported(gpus=[{"uuid": "GPU-n1-0", "sm": "10.7"}]))
    node.launch("l1")
    alice = bench.token("operator", "alice")
    bench.command(alice, "rollout_propose", plan=PLAN)
    bench.command(
        alice, "issue_publish", issue={"id": "i1", "title": "t", "match": {"sm": ["10.7"]}}
    )
    bench.lead()
    head = bench.service.store.head().position
    names = {"nodes": "node", "units": "id", "builds": "key", "rollouts": "id"}
    for view in ("nodes", "units", "builds", "rollouts", "alarms", "gates", "issues", "freezes"):
        listed = bench.get(alice, view)
        assert (listed["apiVersion"], listed["position"]) == ("v1", head), view
        for item in listed["items"] if view in names else ():
            one = bench.get(alice, f"{view}/{item[names[view]]}")
            assert {key: one[key] for key in item} == item | {"position": one["position"]}
    assert bench.get(alice, "units")["items"][0]["nodes"] == ["n1"]
    assert bench.get(alice, "policy")["min_gpu_sets"] == 3
    assert bench.get(alice, "breaker")["open"] is False
    assert bench.get(alice, "waits")["items"][0]["next_step"]


def test_a_name_with_a_slash_and_a_colon_is_found(bench: cb.Bench) -> None:
    node = bench.enrol("rack1/n1")
    unit = node.launch("l1")["unit"]
    assert "/" in unit
    assert ":" in unit
    bench.lead()
    viewer = bench.token("viewer")
    quoted = unit.replace("/", "%2F").replace(":", "%3A")
    for path in (unit, quoted):
        assert bench.get(viewer, f"units/{path}")["id"] == unit
        assert bench.get(viewer, f"units/{path}/why")["unit"] == unit


def test_why_at_an_earlier_moment_gives_the_earlier_answer(bench: cb.Bench) -> None:
    node, viewer = bench.enrol("n1"), bench.token("viewer")
    unit = node.launch("l1")["unit"]
    bench.lead()
    then = bench.service.store.head()
    bench.agreed(bench.token("approver"), "gate_mode", gate=cb.GATE, sm="10.7", mode="enforce")
    bench.lead()
    now = bench.get(viewer, f"units/{unit}/why")
    assert now["override"]["value"] == "marlin"
    moment = bench.get(viewer, "log/head")
    for at in (str(then.position), _iso(then.recorded_at_us)):
        before = bench.get(viewer, f"units/{unit}/why?at={at}")
        assert before["override"]["code"] == "observe"
        assert before["as_of_position"] == then.position
        assert before["facts"][0]["type"]
    later = bench.get(viewer, f"units/{unit}/why?at={moment['recorded_at']}")
    assert later["override"] == now["override"]


@pytest.mark.parametrize(
    ("at", "status", "code"),
    [
        ("0", 404, "unknown_position"),
        ("99999", 404, "unknown_position"),
        ("1", 404, "unknown_unit"),
        ("yesterday", 422, "bad_moment"),
        ("2001-01-01T00:00:00Z", 404, "unknown_unit"),
        ("9" * 40, 422, "bad_moment"),
        ("2999-01-01T00:00:00Z", 422, "bad_moment"),
    ],
)
def test_why_at_a_moment_without_an_answer_says_so(
    embedded: cb.Bench, at: str, status: int, code: str
) -> None:
    unit = embedded.enrol("n1").launch("l1")["unit"]
    answer = embedded.http.get(
        f"/v1/units/{unit}/why?at={at}", headers=cb.bearer(embedded.token("viewer"))
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_the_log_is_read_in_pages_and_verified(bench: cb.Bench) -> None:
    node, viewer = bench.enrol("n1"), bench.token("viewer")
    node.send(cb.reported(), cb.reported(rack="r"))
    first = bench.get(viewer, "events?limit=3")
    rest = bench.get(viewer, f"events?after={first['position']}&limit=1000")
    positions = [item["position"] for item in first["items"] + rest["items"]]
    assert positions == list(range(1, bench.service.store.head().position + 1))
    report = bench.get(viewer, "log/verify")
    assert (report["ok"], report["first_bad"]) == (True, None)
    assert report["chain"] == bench.get(viewer, "log/head")["chain"]


def test_a_token_is_shown_once_works_and_can_be_revoked(bench: cb.Bench) -> None:
    admin = bench.token("admin", "root")
    made = bench.http.post(
        "/v1/tokens",
        headers=cb.bearer(admin),
        json={"kind": "operator", "subject": "eve", "role": "viewer", "ttl_s": 60},
    )
    assert made.status_code == 201
    token, token_id = made.json()["token"], made.json()["id"]
    assert bench.get(token, "units")["items"] == []
    listed = bench.http.get("/v1/tokens", headers=cb.bearer(admin))
    assert token not in listed.text
    assert any(item["id"] == token_id for item in listed.json()["items"])
    for changed in (True, False):
        ended = bench.http.delete(f"/v1/tokens/{token_id}", headers=cb.bearer(admin))
        assert ended.json()["changed"] is changed
    answer = bench.http.get("/v1/units", headers=cb.bearer(token))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_revoked")
    missing = bench.http.delete("/v1/tokens/nothing", headers=cb.bearer(admin))
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_token")


def test_no_token_is_in_the_database(bench: cb.Bench) -> None:
    tokens = [bench.token("admin"), bench.join_token(), bench.enrol("n1").token]
    with bench.service.store.database.statement() as connection:
        stored = str(connection.exec_driver_sql("SELECT * FROM credential").all())
    assert not any(token in stored or token[5:] in stored for token in tokens)


def test_a_token_that_expired_is_refused(bench: cb.Bench) -> None:
    token = bench.token("viewer", ttl_s=0.000001)
    answer = bench.http.get("/v1/units", headers=cb.bearer(token))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_expired")


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "node", "subject": "n1"},
        {"kind": "operator", "subject": "x"},
        {"kind": "operator", "subject": "a b", "role": "viewer"},
        {"kind": "operator", "subject": "x", "role": "root"},
        {"kind": "join", "subject": "x"},
        {"kind": "join", "subject": "x", "role": "viewer", "ttl_s": 5},
        {"kind": "operator", "subject": "x", "role": "viewer", "ttl_s": -1},
        {"kind": "operator", "subject": "x", "role": "viewer", "more": 1},
    ],
)
def test_a_token_that_could_mean_nothing_is_not_made(
    embedded: cb.Bench, body: dict[str, object]
) -> None:
    answer = embedded.http.post("/v1/tokens", headers=cb.bearer(embedded.token("admin")), json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_token_request")


def test_a_command_given_while_another_process_decides_waits_its_turn(bench: cb.Bench) -> None:
    store = bench.service.store
    assert store.acquire_lease(handle.TURN, holder="another", ttl_s=0.3) is not None
    assert bench.command(bench.token("operator"), "freeze_declare", id="f1")["changed"]


def _iso(at_us: int) -> str:
    from smgate.views import shape

    return str(shape.iso(at_us))


def test_a_dry_run_of_an_issue_says_which_units_and_builds_it_matches(bench: cb.Bench) -> None:
    bench.enrol("n1").launch("l1")
    bench.lead()
    alice = bench.token("approver", "alice")
    [unit] = bench.get(alice, "units")["items"]
    issue = {
        "id": "fi-9",
        "title": "zeros",
        "severity": "info",
        "match": {"architecture": [cb.ARCHITECTURE], "sm": ["10.7"]},
    }
    shown = bench.command(alice, "issue_publish", issue=issue, dry_run=True)["preview"]
    assert shown["changed_units"] == 0
    [matched] = shown["issues"]
    assert (matched["id"], matched["matched_units"]) == ("fi-9", 1)
    assert matched["unit_names"] == [unit["id"]]
    assert matched["builds"][0]["sm"] == "10.7"
    issue["match"] = {"sm": ["10.3"]}
    [other] = bench.command(alice, "issue_publish", issue=issue, dry_run=True)["preview"]["issues"]
    assert (other["matched_units"], other["builds"]) == (0, [])


def test_the_shipped_issues_are_listed_and_one_can_be_withdrawn(bench: cb.Bench) -> None:
    bench.lead()
    alice = bench.token("approver", "alice")
    listed = {one["id"]: one for one in bench.get(alice, "issues")["items"]}
    assert set(listed) == {one.id for one in shipped_issues.ALL}
    assert listed["flashinfer-4569"]["severity"] == "block"
    looked = bench.command(alice, "issue_withdraw", issue_id="flashinfer-4569", dry_run=True)
    assert looked["preview"]["issues"][0]["id"] == "flashinfer-4569"
    bench.agreed(alice, "issue_withdraw", issue_id="flashinfer-4569")
    bench.lead()
    assert "flashinfer-4569" not in {one["id"] for one in bench.get(alice, "issues")["items"]}
