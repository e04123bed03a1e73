"""Limits, health, and what leaves the process when something in it fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pathlib
import time
from collections.abc import MutableMapping
from typing import Any

import pytest
from tests import controller_bench as cb, log_records

from smgate import config
from smgate.api import middleware
from smgate.log import commit, port
from smgate.service import leader
from smgate.wire import base

WEIGHTS = {"type": "weights_seen", "instance_id": "k3", "weight_bytes": 1 << 30}


def test_a_token_that_asks_too_often_is_told_when_to_come_back(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    given = cb.settings(url, tmp_path, requests_per_minute_operator=5)
    with cb.running(given) as bench:
        viewer, other = bench.token("viewer", "a"), bench.token("viewer", "b")
        statuses = [
            bench.http.get("/v1/units", headers=cb.bearer(viewer)).status_code for _ in range(7)
        ]
        assert statuses == [200] * 5 + [429] * 2
        refused = bench.http.get("/v1/units", headers=cb.bearer(viewer))
        assert refused.headers["Retry-After"]
        assert refused.json()["error"]["code"] == "too_many_requests"
        assert bench.http.get("/v1/units", headers=cb.bearer(other)).status_code == 200


def test_a_database_that_falls_behind_refuses_with_when_to_come_back(embedded: cb.Bench) -> None:
    """What waits is bounded; nothing that was refused is stored, and the same sent again is."""
    node = embedded.enrol("n1")
    node.send(WEIGHTS)
    waiting, many = [], commit.WAITING_MAX // 10
    position = embedded.service.store.head().position
    with (
        concurrent.futures.ThreadPoolExecutor(11) as pool,
        embedded.service.store.database.writing(),  # Nobody else writes meanwhile.
    ):
        for number in range(11):
            records = log_records.run(f"s{number}", 1, many)
            waiting.append(pool.submit(embedded.service.commands._log.append, records))
        while len(embedded.service.commands._log._together._waiting) < 10:
            time.sleep(0.001)
        answer = embedded.http.post(
            "/v1/agent/facts", headers=node.headers, json=node.batch(WEIGHTS)
        )
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["code"] == "log_overloaded"
        assert answer.json()["error"]["next_step"].startswith("Wait a moment")
    assert sum(len(one.result(30).written) for one in waiting) == 11 * many
    node.send(WEIGHTS)
    assert embedded.service.store.head().position == position + 11 * many + 1


def test_a_form_above_the_level_of_the_log_is_refused_with_what_to_do(embedded: cb.Bench) -> None:
    node = embedded.enrol("n1")
    embedded.service.store.above = frozenset({("weights_seen", 1)})
    answer = embedded.http.post("/v1/agent/facts", headers=node.headers, json=node.batch(WEIGHTS))
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "not_finalized"
    assert "smgate db finalize" in answer.json()["error"]["next_step"]


def test_guessing_tokens_is_bounded(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with cb.running(cb.settings(url, tmp_path, requests_per_minute_unknown=3)) as bench:
        guess = cb.bearer("smgo_" + "A" * 43)
        statuses = [bench.http.get("/v1/units", headers=guess).status_code for _ in range(5)]
        assert statuses == [401] * 3 + [429] * 2
        known = bench.http.get("/v1/units", headers=cb.bearer(bench.token("viewer")))
        assert known.status_code == 200


def test_a_body_of_just_the_limit_is_read_and_one_byte_more_is_not(embedded: cb.Bench) -> None:
    node = embedded.enrol("n1")
    for size, status in ((base.BODY_BYTES_MAX, 422), (base.BODY_BYTES_MAX + 1, 413)):
        answer = embedded.http.post("/v1/agent/facts", headers=node.headers, content=b" " * size)
        assert answer.status_code == status


def test_it_is_ready_only_while_somebody_leads(bench: cb.Bench) -> None:
    assert bench.http.get("/readyz").json() == {"status": "ready", "problems": []}
    bench.service.leader.hand_over()
    answer = bench.http.get("/readyz")
    assert answer.status_code == 503
    assert [problem["code"] for problem in answer.json()["problems"]] == ["no_leader"]
    assert bench.http.get("/healthz").status_code == 200
    assert bench.service.store.acquire_lease(leader.LEASE, holder="another", ttl_s=5) is not None
    assert bench.http.get("/readyz").status_code == 200  # another process leads


def test_it_is_not_ready_on_a_database_of_an_older_revision(embedded: cb.Bench) -> None:
    with embedded.service.store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    problems = embedded.http.get("/readyz").json()["problems"]
    assert [problem["code"] for problem in problems] == ["schema"]


def test_facts_are_taken_in_while_nobody_leads(bench: cb.Bench) -> None:
    node = bench.enrol("n1")
    bench.service.leader.hand_over()
    assert node.send(cb.reported())["acknowledged_through"] == 1


@pytest.mark.parametrize("path", ["units/%00", "units/%00/why", "nodes/a%00b", "builds/%00"])
def test_a_name_that_no_database_can_hold_is_not_there(bench: cb.Bench, path: str) -> None:
    answer = bench.http.get(f"/v1/{path}", headers=cb.bearer(bench.token("viewer")))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"]


def test_a_database_that_does_not_answer_is_said_so_without_details(
    embedded: cb.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = embedded.enrol("n1")

    def unavailable(*_: object, **__: object) -> None:
        raise port.LogUnavailableError("disk_full", "/var/lib/secret/path is full")

    monkeypatch.setattr(embedded.service.store, "append_group", unavailable)
    answer = embedded.http.post(
        "/v1/agent/facts", headers=node.headers, json=node.batch(cb.reported())
    )
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert answer.json()["error"]["code"] == "log_unavailable"
    assert "secret" not in answer.text


def test_a_failure_of_ours_is_answered_without_a_traceback(
    embedded: cb.Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise KeyError("an inner detail")

    viewer = embedded.token("viewer")
    monkeypatch.setattr(embedded.service.store, "head", bug)
    answer = embedded.http.get("/v1/log/head", headers=cb.bearer(viewer))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "inner detail" not in answer.text
    assert "inner detail" in caplog.text


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"SMGATE_PORT": "eighty"}, "SMGATE_PORT"),
        ({"SMGATE_LEASE_TTL_S": "nan"}, "lease_ttl_s"),
        ({"SMGATE_UPGRADE_SQLITE": "perhaps"}, "SMGATE_UPGRADE_SQLITE"),
        ({"SMGATE_LOG_LEVEL": "chatty"}, "log_level"),
        ({"SMGATE_TICK_S": "0"}, "tick_s"),
    ],
)
def test_a_setting_that_cannot_mean_anything_is_refused_by_name(
    environ: dict[str, str], says: str
) -> None:
    with pytest.raises(config.BadSettingError, match=says):
        config.load(environ)


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"SMGATE_PORT": "1", "SMGATE_TICK_S": "2"}
    made = config.load(environ, port=3)
    assert (made.port, made.tick_s, made.host) == (3, 2.0, "127.0.0.1")
    with pytest.raises(config.BadSettingError, match="nonsense"):
        config.load({}, nonsense=1)


@pytest.mark.parametrize("announced", [b"100", b"999999999"], ids=["small", "too large"])
def test_a_body_that_never_ends_is_given_up(announced: bytes) -> None:
    sent: list[Any] = []

    async def never(*_: object) -> None:
        pytest.fail("half a request reached a route")

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.sleep(3600)
        return parts.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    parts: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]
    scope = {"type": "http", "path": "/v1/commands", "headers": [(b"content-length", announced)]}
    limited = middleware.BodyLimit(never, body_s_max=0.05)
    asyncio.run(limited(scope, receive, send))
    assert sent[0]["status"] == 408
    assert b"body_too_slow" in sent[1]["body"]


def test_a_newer_release_that_only_added_leaves_this_one_ready(bench: cb.Bench) -> None:
    """Else putting the release before back would leave nobody to send requests to."""
    with bench.service.store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert bench.http.get("/readyz").json() == {"status": "ready", "problems": []}
    with bench.service.store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE log_format SET level = 99")
    [problem] = bench.http.get("/readyz").json()["problems"]
    assert (problem["code"], "level 99" in problem["sentence"]) == ("schema", True)


def test_an_event_of_a_newer_release_stops_the_reader_with_its_name(bench: cb.Bench) -> None:
    viewer = bench.token("viewer")
    store = bench.service.store
    record = port.NewRecord("tomorrow", 1, "martian_landed", 7, 1, "controller", b"{}")
    store.append([record], writer="tomorrow")
    answer = bench.http.get("/v1/units", headers=cb.bearer(viewer))
    told = answer.json()["error"]
    assert (answer.status_code, told["code"]) == (503, "event_unknown")
    assert "'martian_landed' version 7" in told["message"]
    assert told["next_step"]
    bench.service.leader.step()
    problems = bench.http.get("/readyz").json()["problems"]
    assert "'martian_landed' version 7" in problems[0]["sentence"]
    assert bench.get(viewer, "events?after=0&limit=1000")["items"][-1]["type"] == "martian_landed"
    assert bench.get(viewer, "log/verify")["ok"] is True
