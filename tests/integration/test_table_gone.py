"""The log's table goes away under a controller and comes back: said by code, and no failure of ours."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa
from tests import controller_bench as cb


def rename(bench: cb.Bench, before: str, after: str) -> None:
    with bench.service.store.database.writing() as connection:
        connection.execute(sa.text(f"ALTER TABLE {before} RENAME TO {after}"))


def test_a_log_without_its_table_is_not_ready_and_nothing_is_lost(
    bench: cb.Bench, caplog: pytest.LogCaptureFixture
) -> None:
    person, machine = bench.token("admin"), bench.enrol("n1")
    rename(bench, "log_event", "put_aside")
    status, answer = bench.refused(person, "freeze_declare", id="night")
    assert (status, answer["error"]["code"]) == (503, "log_not_ready")
    assert "smgate db upgrade" in answer["error"]["next_step"]
    sent = bench.http.post(
        "/v1/agent/facts", headers=machine.headers, json=machine.batch(cb.reported())
    )
    assert (sent.status_code, sent.json()["error"]["code"]) == (503, "log_not_ready")
    ready = bench.http.get("/readyz")
    assert ready.status_code == 503
    assert "log_not_ready" in [one["code"] for one in ready.json()["problems"]]

    rename(bench, "put_aside", "log_event")
    bench.lead()
    machine.send(cb.reported())
    bench.command(person, "freeze_declare", id="night")
    assert bench.http.get("/readyz").json() == {"status": "ready", "problems": []}
    assert bench.get(person, "log/verify")["ok"] is True
    assert not [one for one in caplog.records if one.exc_info], "no failure of ours"
    assert [one for one in caplog.records if one.levelno == logging.ERROR]


def test_the_leader_says_that_the_log_is_gone(
    embedded: cb.Bench, caplog: pytest.LogCaptureFixture
) -> None:
    embedded.enrol("n1")
    rename(embedded, "log_event", "put_aside")
    embedded.service.folder.reset()
    embedded.service.leader.step()
    [problem] = [
        one
        for one in embedded.http.get("/readyz").json()["problems"]
        if one["code"] == "leader_failed"
    ]
    assert "smgate db upgrade" in problem["sentence"]
    assert not [one for one in caplog.records if one.exc_info]
