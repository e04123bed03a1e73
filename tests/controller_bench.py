"""A controller in this process for tests: real database, real HTTP application, leader by hand.

`lead` does what the leader's thread would, so a test knows when everything is decided.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import msgspec
import nacl.signing
from starlette import testclient

from smgate import bootstrap, config
from smgate.api import app as api
from smgate.service import credentials, service as services

GATE = "kimi-k3-mxfp4"
ARCHITECTURE = "KimiK3ForConditionalGeneration"

Json = dict[str, Any]


@dataclasses.dataclass
class Machine:
    """One enrolled node, and the facts it sends."""

    bench: Bench
    name: str
    token: str
    public_key: str
    outbox: str
    sequence: int = 0

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.token)

    def batch(self, *payloads: Json, first: int | None = None) -> Json:
        """A batch of facts after those sent so far, or from a sequence."""
        start = self.sequence + 1 if first is None else first
        return {
            "node": self.name,
            "outbox_id": self.outbox,
            "facts": [
                {"sequence": start + offset, "occurred_at_us": 1, "payload": payload}
                for offset, payload in enumerate(payloads)
            ],
        }

    def send(self, *payloads: Json) -> Json:
        """Send facts; they must be taken."""
        answer = self.bench.http.post(
            "/v1/agent/facts", headers=self.headers, json=self.batch(*payloads)
        )
        assert answer.status_code == 200, answer.text
        self.sequence += len(payloads)
        return answer.json()

    def launch(self, launch_id: str, **changes: Any) -> Json:
        """Report a launch; the answer."""
        body = {
            "node": self.name,
            "occurred_at_us": 1,
            "launch": launch(launch_id, node=self.name, **changes),
        }
        answer = self.bench.http.post("/v1/agent/launch", headers=self.headers, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(self, launch_id: str, wait: float = 0) -> Json:
        answer = self.bench.http.get(
            f"/v1/agent/launch/{launch_id}?wait={wait}", headers=self.headers
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def directive(self, generation: int = 0, wait: float = 0) -> Json | None:
        """The directive, its signature checked; None if there is nothing new."""
        answer = self.bench.http.get(
            f"/v1/agent/directive?generation={generation}&wait={wait}", headers=self.headers
        )
        if answer.status_code == 204:
            return None
        assert answer.status_code == 200, answer.text
        return opened(answer.json(), self.public_key)


@dataclasses.dataclass
class Bench:
    """One controller."""

    service: services.Service
    http: testclient.TestClient
    numbers: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def token(
        self, role: credentials.Role, name: str | None = None, ttl_s: float | None = None
    ) -> str:
        """A new operator's token."""
        return self.service.credentials.issue(
            kind="operator", subject=name or role, role=role, ttl_s=ttl_s
        ).token

    def join_token(self) -> str:
        return self.service.credentials.issue(kind="join", subject="tests", ttl_s=3600).token

    def enrol(self, name: str, machine_id: str | None = None) -> Machine:
        """A new node."""
        answer = self.http.post(
            "/v1/agent/enroll",
            headers=bearer(self.join_token()),
            json={"node": name, "machine_id": machine_id or f"id-{name}", "agent_version": "1"},
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        return Machine(
            bench=self,
            name=name,
            token=body["credential"],
            public_key=body["public_key"],
            outbox=f"outbox-{name}-{next(self.numbers)}",
        )

    def command(self, token: str, type: str, **fields: Any) -> Json:
        """Give a command that must be taken."""
        answer = self.refused(token, type, **fields)
        assert answer[0] == 200, answer
        return answer[1]

    def agreed(self, token: str, type: str, **fields: Any) -> Json:
        """Give a command that widens, and have another person accept it: what that came to."""
        asked = self.command(token, type, **fields)
        assert asked["waits"]["kind"] == "asked", asked
        return self.command(
            self.token("approver", "second"), "change_accept", change=asked["waits"]["change"]
        )

    def refused(self, token: str, type: str, **fields: Any) -> tuple[int, Json]:
        """Give a command; status and body."""
        body = {"type": type, "reason": "a test", **fields}
        answer = self.http.post("/v1/commands", headers=bearer(token), json=body)
        return answer.status_code, answer.json()

    def get(self, token: str, path: str) -> Json:
        answer = self.http.get(f"/v1/{path}", headers=bearer(token))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def lead(self) -> None:
        """Let the leader do all there is to do."""
        before = -1
        while before != self.service.store.head().position:
            before = self.service.store.head().position
            self.service.leader.step()
        assert self.service.leader.status.leading
        assert self.service.leader.status.failures == 0

    def events(self, type: str | None = None) -> list[Any]:
        """The log's records, of one type."""
        records = self.service.store.read(after=0, limit=100_000)
        return [record for record in records if type is None or record.type == type]


def settings(database_url: str, folder: pathlib.Path, **changes: Any) -> config.Settings:
    """Settings of a test's controller, with a signing key of its own.

    It loses its lease by handing it over alone, however slow the machine is.
    """
    given = {"lease_ttl_s": 60, **changes}
    key = folder / "signing.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_text("11" * 32)
    return config.load({}, database_url=database_url, signing_key_file=str(key), **given)


@contextlib.contextmanager
def running(given: config.Settings, *, lead: bool = True) -> Iterator[Bench]:
    """A controller on a database; it leads unless told otherwise."""
    with bootstrap.assembled(given) as service:
        with testclient.TestClient(
            api.create(service, version="0"), raise_server_exceptions=False
        ) as http:
            bench = Bench(service=service, http=http)
            if lead:
                bench.lead()
            yield bench
        service.leader.hand_over()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def opened(signed: Json, public_key: str) -> Json:
    """The directive in a signed one; raises if the signature is not the key's."""
    message = signed["signed"].encode()
    key = nacl.signing.VerifyKey(bytes.fromhex(public_key))
    key.verify(message, bytes.fromhex(signed["signature"]))
    body: Json = msgspec.json.decode(message)
    return body


def launch(launch_id: str, *, node: str, sm: str = "10.7", **changes: Any) -> Json:
    """A K3 launch on one GPU."""
    return {
        "type": "launch_planned",
        "launch_id": launch_id,
        "platform": "cuda",
        "argv_read": True,
        "gpus": [{"uuid": f"GPU-{node.replace('/', '-')}-0", "sm": sm}],
        "model": {
            "digest": "abcdef0123",
            "architecture": ARCHITECTURE,
            "quant_method": "compressed-tensors",
            "format_group": "mxfp4-pack-quantized",
        },
        "build": build(),
        "layout": {"experts": 64, "hidden_size": 128, "intermediate_size": 128, "top_k": 2},
    } | changes


def build(**changes: Any) -> Json:
    """The versions beside the kernels of that launch."""
    return {
        "sglang_version": "0.5.23",
        "flashinfer_version": "0.7.2",
        "torch_cuda": "13.0",
        "driver_version": "580.65.06",
    } | changes


def reported(**changes: Any) -> Json:
    return {"type": "node_reported", "agent_version": "1"} | changes
