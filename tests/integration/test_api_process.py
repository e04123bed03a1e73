"""Real processes: stopping with long-polls open, and a standby that takes over from a killed leader."""

from __future__ import annotations

import concurrent.futures
import pathlib
import time

import httpx2
import pytest
from tests import controller_bench as cb, controller_process as processes

from smgate.log import open as log_open


def enrol(url: str, database_url: str, node: str) -> str:
    join = processes.issue_token(database_url, "--join")
    answer = httpx2.post(
        f"{url}/v1/agent/enroll",
        headers=cb.bearer(join),
        json={"node": node, "machine_id": node, "agent_version": "1"},
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["credential"])


def leads(url: str) -> bool:
    text = httpx2.get(f"{url}/metrics").text
    return "smgate_leader 1.0" in text.splitlines()


def until_it_leads(url: str, *, within_s: float) -> float:
    started = time.monotonic()
    while not leads(url):
        assert time.monotonic() - started < within_s, "it does not lead"
        time.sleep(0.05)
    return time.monotonic() - started


def test_stopping_answers_the_long_polls_and_ends_at_once_with_zero(
    tmp_path: pathlib.Path,
) -> None:
    database_url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(database_url)
    with processes.serving(database_url, tmp_path) as controller:
        token = enrol(controller.url, database_url, "n1")
        until_it_leads(controller.url, within_s=10)
        until = httpx2.get(f"{controller.url}/v1/agent/directive", headers=cb.bearer(token))
        generation = int(until.json()["signed"].split('"generation":')[1].split(",")[0])
        path = f"/v1/agent/directive?generation={generation}&wait=60"
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waiting = [
                pool.submit(httpx2.get, controller.url + path, headers=cb.bearer(token), timeout=90)
                for _ in range(8)
            ]
            while "smgate_long_polls 8.0" not in httpx2.get(f"{controller.url}/metrics").text:
                time.sleep(0.05)
            started = time.monotonic()
            assert controller.stop() == 0
            assert time.monotonic() - started < 20
            assert [answer.result().status_code for answer in waiting] == [204] * 8
    log = controller.log.read_text()
    assert "Stopped." in log
    assert "ERROR" not in log


@pytest.mark.postgres
def test_when_the_leader_is_killed_the_standby_decides_within_seconds(
    postgres_url: str, tmp_path: pathlib.Path
) -> None:
    with (
        processes.serving(postgres_url, tmp_path, SMGATE_LEASE_TTL_S="1") as first,
        processes.serving(postgres_url, tmp_path, SMGATE_LEASE_TTL_S="1") as second,
    ):
        until_it_leads(first.url, within_s=20)
        assert not leads(second.url)
        token = enrol(second.url, postgres_url, "n1")  # a standby takes facts in too
        first.kill()
        assert until_it_leads(second.url, within_s=20) < 15
        body = {
            "node": "n1",
            "occurred_at_us": 1,
            "launch": {k: v for k, v in cb.launch("l1", node="n1").items() if k != "type"},
        }
        asked = httpx2.post(f"{second.url}/v1/agent/launch", headers=cb.bearer(token), json=body)
        assert asked.status_code == 200, asked.text
        answer = httpx2.get(
            f"{second.url}/v1/agent/launch/l1?wait=20", headers=cb.bearer(token), timeout=30
        )
        assert answer.json()["directive"] is not None
        assert second.stop() == 0


def test_it_says_why_it_cannot_start(tmp_path: pathlib.Path) -> None:
    database_url = f"sqlite:///{tmp_path / 'log.db'}"
    with processes.serving(database_url, tmp_path) as controller:
        port = controller.url.rsplit(":", 1)[1]
        with (
            pytest.raises(AssertionError, match=r"Cannot listen on 127\.0\.0\.1"),
            processes.serving(database_url, tmp_path, port=int(port)),
        ):
            pass
