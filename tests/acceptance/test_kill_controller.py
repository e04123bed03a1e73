"""Killing the controller while it takes facts in loses nothing acknowledged and doubles nothing."""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx2
import pytest
from tests import controller_process as processes, ports

from smgate.log import open as log_open

HERE = pathlib.Path(__file__).parent
KILLS = 20
NODES = ("n1", "n2")
KINDS = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    return url


def enrol(controller: processes.Controller, database_url: str, folder: pathlib.Path) -> None:
    join = processes.issue_token(database_url, "--join")
    for node in NODES:
        answer = httpx2.post(
            f"{controller.url}/v1/agent/enroll",
            headers={"Authorization": f"Bearer {join}"},
            json={"node": node, "machine_id": node, "agent_version": "1"},
        )
        assert answer.status_code == 200, answer.text
        (folder / f"{node}.token").write_text(answer.json()["credential"])


@contextlib.contextmanager
def sending(url: str, folder: pathlib.Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One sender for each node, told to stop at the end."""
    made = [
        subprocess.Popen(
            [
                *(sys.executable, str(HERE / "fact_sender.py"), url),
                *(str(folder / f"{node}.token"), node, f"outbox-{node}"),
                *(str(folder / f"{node}.acks"), str(folder / "stop")),
            ]
        )
        for node in NODES
    ]
    try:
        yield made
        (folder / "stop").touch()
        assert [sender.wait(30) for sender in made] == [0] * len(NODES)
    finally:
        for sender in made:
            if sender.poll() is None:
                sender.kill()
                sender.wait(30)


def acknowledged(folder: pathlib.Path) -> int:
    return sum(
        len(path.read_text().split())
        for node in NODES
        if (path := folder / f"{node}.acks").exists()
    )


def until_acknowledged(folder: pathlib.Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while acknowledged(folder) < count:
        assert time.monotonic() < deadline, "nothing is acknowledged any more"
        time.sleep(0.01)


@pytest.mark.timeout(600)
def test_twenty_kills_during_ingest_lose_nothing_and_double_nothing(
    database_url: str, tmp_path: pathlib.Path
) -> None:
    dice = random.Random()
    port = ports.free_port()
    serve = {"port": port, "SMGATE_LEASE_TTL_S": "1", "SMGATE_REQUESTS_PER_MINUTE_NODE": "1000000"}
    with processes.serving(database_url, tmp_path, **serve) as controller:
        enrol(controller, database_url, tmp_path)
        controller.kill()
    with sending(f"http://127.0.0.1:{port}", tmp_path):
        for _ in range(KILLS):
            before = acknowledged(tmp_path)
            with processes.serving(database_url, tmp_path, **serve) as controller:
                until_acknowledged(tmp_path, before + 1)
                time.sleep(dice.uniform(0, 0.3))
                controller.kill()
        with processes.serving(database_url, tmp_path, **serve) as controller:
            until_acknowledged(tmp_path, acknowledged(tmp_path) + 1)
            (tmp_path / "stop").touch()
            assert controller.stop() == 0

    checked = subprocess.run(
        [
            *(sys.executable, str(HERE / "fact_checker.py"), database_url),
            *(f"outbox-{node}={tmp_path / node}.acks" for node in NODES),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(checked.stdout)
    assert found["acknowledged"] > KILLS * 3
    assert (found["lost"], found["twice"], found["other"]) == ([], [], [])
    assert found["stored"] >= found["acknowledged"]
    verified = subprocess.run(
        [str(processes.SMGATE), "log", "verify", "--database", database_url, "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["ok"] is True
