"""A backup is put back: a real database file, a real controller, the agent's own outbox and link."""

import contextlib
import sqlite3
import subprocess
import threading
import time

import httpx2
import pytest
from tests import controller_bench, controller_process, ports

from smgate.wire import facts
from smgate_agent import clock, controller_link, delivery, directive_poll, identity, outbox
from smgate_agent.launch import ed25519

NODE = "node-1"
GATE = controller_bench.GATE
WAIT_S = 20.0


class Site:
    """One controller on one database file, an approver, and one node's agent."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "log.db"
        self.url = f"sqlite:///{self.file}"
        self.port = ports.free_port()
        self.smgate("db", "upgrade")
        self.tokens = {
            name: controller_process.issue_token(self.url, "--role", "approver", "--name", name)
            for name in ("alice", "bob")
        }
        self.join = controller_process.issue_token(self.url, "--join")

    def smgate(self, *words):
        command = [str(controller_process.SMGATE), *words, "--database", self.url]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    @contextlib.contextmanager
    def controller(self):
        """Other processes' addresses change; this one comes back where it was."""
        with controller_process.serving(self.url, self.folder, port=self.port) as running:
            yield running
            running.stop()

    def backup(self, to):
        with (
            contextlib.closing(sqlite3.connect(self.file)) as source,
            contextlib.closing(sqlite3.connect(to)) as target,
        ):
            source.backup(target)

    def put_back(self, copy):
        for suffix in ("-wal", "-shm"):
            self.file.with_name(self.file.name + suffix).unlink(missing_ok=True)
        self.file.write_bytes(copy.read_bytes())
        with contextlib.closing(sqlite3.connect(self.file)) as db:
            db.execute("UPDATE lease SET expires_at_us = 1")  # it ran out hours ago
            db.commit()

    def _http(self, method, path, who, **options):
        with httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30) as http:
            headers = controller_bench.bearer(self.tokens.get(who, who))
            return http.request(method, f"/v1/{path}", headers=headers, **options)

    def command(self, type_, by="alice", **fields):
        """One person asks; if it waits for another, that one accepts."""
        body = {"type": type_, "reason": "a test", **fields}
        answer = self._http("POST", "commands", by, json=body)
        assert answer.status_code == 200, answer.text
        for event in answer.json()["events"]:
            if event["type"] == "change_asked":
                self.command("change_accept", by="bob", change=self.changes()[-1]["id"])

    def get(self, path):
        answer = self._http("GET", path, "alice")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def changes(self):
        return self.get("changes")["items"]

    def override(self):
        (row,) = [one for one in self.get("units")["items"] if one["id"].startswith(NODE)]
        return row["override"]

    def enrol(self):
        body = {"node": NODE, "machine_id": "m-1", "agent_version": "1"}
        answer = self._http("POST", "agent/enroll", self.join, json=body)
        assert answer.status_code == 200, answer.text
        return identity.Credential(
            node=NODE,
            controller_url=f"http://127.0.0.1:{self.port}",
            credential=answer.json()["credential"],
            public_key=answer.json()["public_key"],
            incarnation=answer.json()["incarnation"],
        )


class Agent:
    """The parts of the resident agent that talk to the controller, stepped by hand."""

    def __init__(self, credential, folder):
        folder.mkdir(exist_ok=True)
        link = controller_link.Link(credential, clock_=clock.SystemClock(), keep_alive=False)
        numbers = iter(range(100))
        self.outbox = outbox.Outbox(
            folder / "outbox.db",
            clock_=clock.SystemClock(),
            new_id=lambda: f"outbox-{next(numbers)}",
        )
        self.holder = directive_poll.Holder(folder, credential=credential, verify=ed25519.verify)
        self.asked = []
        self.deliverer = delivery.Deliverer(
            link=link, outbox_=self.outbox, jitter=lambda: 0.0, stop=threading.Event()
        )
        self.poller = directive_poll.Poller(
            link=link,
            holder=self.holder,
            clock_=clock.SystemClock(),
            wait_s=0,
            jitter=lambda: 0.0,
            stop=threading.Event(),
            on_another_log=self._say,
            on_confirmed=lambda _held: None,
            on_baking=lambda _names: None,
        )

    def _say(self, held):
        self.asked.append(held)
        if self.outbox.report("directive_held", held):
            self.outbox.rewind()

    def turn(self):
        """Send all that is pending, ask once."""
        while self.deliverer.step()[0]:
            pass
        self.poller.step()

    def until(self, holds):
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, (self.holder.held, self.asked)
            self.turn()
            time.sleep(0.05)

    def told(self):
        held = self.holder.held
        return None if held is None or not held.units else held.units[0].value


def reported(rack):
    return facts.NodeReported(agent_version="1", rack=rack)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def launch(site, credential, launch_id):
    body = {
        "node": NODE,
        "occurred_at_us": 1,
        "launch": controller_bench.launch(launch_id, node=NODE),
    }
    answer = site._http("POST", "agent/launch", credential.credential, json=body)
    assert answer.status_code == 200, answer.text


def test_a_backup_is_put_back_and_nothing_widens_by_itself(site, tmp_path):
    copy = tmp_path / "backup.db"
    with site.controller():
        credential = site.enrol()
        agent = Agent(credential, tmp_path / "agent")
        site.command("gate_mode", gate=GATE, sm="10.7", mode="enforce")
        agent.outbox.append(reported("r1"))
        agent.turn()
        launch(site, credential, "first")
        agent.until(lambda: agent.told() == "marlin")
        site.backup(copy)

        unit = site.get("units")["items"][0]["id"]
        site.command("unit_release", unit=unit)
        agent.outbox.append(reported("r2"))
        agent.until(lambda: agent.holder.held.units[0].code == "released")
        before = agent.holder.incarnation
        refused = site.smgate("db", "restore-begin", "--reason", "too early")
        assert refused.returncode != 0
        assert "controller" in refused.stderr

    site.put_back(copy)
    begun = site.smgate("db", "restore-begin", "--reason", "the disk died", "-o", "name")
    assert begun.returncode == 0, begun.stderr
    with site.controller():
        assert site.override()["value"] == "marlin"
        agent.until(lambda: agent.holder.incarnation != before)
        assert agent.holder.incarnation == begun.stdout.strip()
        assert [held.units[0].code for held in agent.asked[:1]] == ["released"]
        assert agent.told() is None
        assert site.override()["code"] == "held_before_restore"
        (node,) = site.get("nodes")["items"]
        assert node["rack"] == "r2", "what the restored log lacked was sent again"

        site.command("db_restore_finish")
        time.sleep(1)
        (change,) = site.changes()
        assert (change["code"], change["units"]) == ("restore", [unit])
        site.command("change_accept", by="bob", change=change["id"])
        agent.until(lambda: agent.told() == "marlin")
    agent.outbox.close()


def test_a_log_that_was_restored_stands_its_check(site):
    assert site.smgate("db", "restore-begin", "--reason", "a rehearsal").returncode == 0
    assert site.smgate("log", "verify").returncode == 0
