"""PostgreSQL dies in the middle of appends: restarted, or replaced by its standby."""

from __future__ import annotations

import collections
import pathlib
import threading
import time

import httpx2
import pytest
from tests import controller_bench as cb, controller_process, postgres_servers as servers
from tests.log_records import record

from smgate.log import commit, open as log_open, port, verify

pytestmark = pytest.mark.postgres

THREADS = 16
WAIT_S = 60


class Writers:
    """Threads that append one record after the other, and the same again until it is acknowledged."""

    def __init__(self, url: str) -> None:
        self.store = log_open.open_sql_store(url, clock_us=lambda: 0)
        self._together = commit.GroupCommit(self.store, writer="w")
        self._stop = threading.Event()
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.refused: collections.Counter[str] = collections.Counter()
        self.wrong: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(f"s{number}",)) for number in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, stream: str) -> None:
        version = 1
        while not self._stop.is_set():
            try:
                found = self._together.append([record(stream, version)], gapless=True)
            except port.LogUnavailableError as error:
                self.refused[error.reason] += 1
                self._stop.wait(0.05)
            except Exception as error:
                self.wrong.append(error)
                return
            else:
                self.acknowledged[stream, version] = found.positions[0]
                version += 1

    def go_on(self, more: int = 200) -> None:
        """Wait for so many more acknowledgements."""
        until, deadline = len(self.acknowledged) + more, time.monotonic() + WAIT_S
        while len(self.acknowledged) < until:
            assert not self.wrong, self.wrong
            assert time.monotonic() < deadline, self.refused
            time.sleep(0.01)

    def judge(self) -> None:
        """Stop them: every answer was true, and the log is whole."""
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        assert self.wrong == []
        stands, after = {}, 0
        while page := self.store.read(after=after):
            after = page[-1].position
            stands |= {(one.stream, one.version): one.position for one in page}
        lost = {key: at for key, at in self.acknowledged.items() if stands.get(key) != at}
        assert lost == {}
        assert len(stands) <= len(self.acknowledged) + THREADS, "nothing was written twice"
        assert verify.verify(self.store).ok
        self.store.close()


def test_a_server_killed_in_the_middle_of_appends_and_its_standby_lose_nothing_acknowledged() -> (
    None
):
    """With `synchronous_standby_names` a commit is acknowledged once the standby has it too."""
    with servers.primary() as first, servers.standby(first) as second:
        first.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        first.execute("SELECT pg_reload_conf()")
        first.until("SELECT sync_state FROM pg_stat_replication", "sync")
        url = f"postgresql://postgres@{first.place},{second.place}/postgres"
        log_open.upgrade(url)
        writers = Writers(url)
        writers.go_on()
        first.kill()
        first.start()
        writers.go_on()
        assert writers.refused["connection"] > 0
        first.kill()
        second.promote()
        writers.go_on()
        assert second.value("SELECT position FROM log_head") > 0
        writers.judge()


def test_a_standby_that_lacked_what_was_told_is_another_log_and_nothing_widens(
    tmp_path: pathlib.Path,
) -> None:
    with servers.primary() as first, servers.standby(first) as second:
        url = f"postgresql://postgres@{first.place},{second.place}/postgres"
        log_open.upgrade(url)
        admin = controller_process.issue_token(url, "--role", "admin", "--name", "alice")
        settled = "SELECT count(*) FROM log_event WHERE type = 'policy_published'"
        with (
            controller_process.serving(url, tmp_path) as running,
            httpx2.Client(base_url=running.url, timeout=30, headers=cb.bearer(admin)) as http,
        ):
            second.until(settled, 1)
            before = ready(http)
            second.execute("ALTER SYSTEM SET primary_conninfo = ''")
            second.execute("SELECT pg_reload_conf()")
            first.until("SELECT count(*) FROM pg_stat_replication", 0)
            body = {"type": "freeze_declare", "id": "f1", "reason": "a test"}
            assert http.post("/v1/commands", json=body).status_code == 200
            seen = http.get("/v1/log/head").json()["position"]
            first.kill()
            second.promote()
            deadline = time.monotonic() + WAIT_S
            while ready(http) == before:
                assert time.monotonic() < deadline, running.log.read_text()[-3000:]
                time.sleep(0.1)
            waits = http.get("/v1/waits").json()["items"]
            assert "restore" in {one["code"] for one in waits}, waits
            assert http.get("/v1/freezes").json()["items"] == [], "the standby never had it"
            assert http.post("/v1/commands", json=body).status_code == 200
            assert f"has seen position {seen}" in running.log.read_text()
        assert second.value("SELECT count(*) FROM log_event WHERE type = 'log_restored'") == 1
        store = log_open.open_sql_store(url, clock_us=lambda: 0, read_only=True)
        assert verify.verify(store).ok
        store.close()


def ready(http: httpx2.Client) -> str | None:
    """The incarnation of the log, once the controller works on it."""
    deadline = time.monotonic() + WAIT_S
    while True:
        if http.get("/readyz").status_code == 200:
            return str(http.get("/v1/log/head").json()["incarnation"])
        assert time.monotonic() < deadline
        time.sleep(0.1)
