"""Garbage in: an answer with a code and a sentence, nothing written, nothing crashed.

Against a real controller in a process of its own, whose memory is watched too.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator

import httpx2
import pytest
from tests import controller_bench as cb, controller_process as processes

from smgate.log import open as log_open, port, verify

MIB = 1 << 20
DEEP = b"[" * 100_000 + b"]" * 100_000


@dataclasses.dataclass
class Target:
    """A controller, a node's credential, a person's token, and a look into the database."""

    controller: processes.Controller
    http: httpx2.Client
    node: str
    approver: str
    store: port.Store

    def post(self, path: str, content: object, token: str) -> httpx2.Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.http.post(path, content=body, headers=cb.bearer(token))

    def memory_mib(self) -> float:
        """The most the process ever held."""
        status = pathlib.Path(f"/proc/{self.controller.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("garbage")
    url = f"sqlite:///{folder / 'log.db'}"
    log_open.upgrade(url)
    join = processes.issue_token(url, "--join")
    approver = processes.issue_token(url, "--role", "approver", "--name", "alice")
    with (
        processes.serving(url, folder, SMGATE_REQUESTS_PER_MINUTE_UNKNOWN="10000") as controller,
        httpx2.Client(base_url=controller.url, timeout=60) as http,
    ):
        answers = [
            http.post(
                "/v1/agent/enroll",
                headers=cb.bearer(join),
                json={"node": name, "machine_id": name, "agent_version": "1"},
            ).json()
            for name in ("n1", "n2")
        ]
        store = log_open.open_store(url, clock_us=lambda: 0, read_only=True)
        made = Target(controller, http, answers[0]["credential"], approver, store)
        made.post("/v1/agent/facts", facts({"rack": "r1"}), made.node).raise_for_status()
        yield made
        assert verify.verify(store).ok
        store.close()
        assert controller.stop() == 0
        assert "Traceback" not in controller.log.read_text()


def facts(change: dict[str, object], **batch: object) -> dict[str, object]:
    payload = cb.reported() | change
    fact = {"sequence": 1, "occurred_at_us": 1, "payload": payload}
    return {"node": "n1", "outbox_id": "o1", "facts": [fact]} | batch


def launch(change: dict[str, object]) -> dict[str, object]:
    return {
        "node": "n1",
        "occurred_at_us": 1,
        "launch": {k: v for k, v in cb.launch("l1", node="n1").items() if k != "type"} | change,
    }


def refused(target: Target, answer: httpx2.Response, *, status: int | None = None) -> str:
    """The code, after a look at the shape."""
    assert 400 <= answer.status_code < 500, answer.text
    assert status is None or answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"code", "message", "next_step"}
    assert error["code"]
    assert error["message"].endswith((".", "!", "?")), error
    assert error["next_step"]
    assert "Traceback" not in answer.text
    return str(error["code"])


BODIES = {
    "nothing": b"",
    "not JSON": b"not json at all",
    "half JSON": b'{"node": "n1", "outbox_',
    "a list": b"[]",
    "null": b"null",
    "a number": b"5",
    "invalid UTF-8": b'{"node": "\xff\xfe"}',
    "a lone surrogate": b'{"node": "\\ud800"}',
    "NaN": b'{"node": NaN}',
    "infinity": b'{"node": "n1", "facts": [1e999]}',
    "deep nesting": DEEP,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "zero bytes": b"\x00" * 1000,
    "gzip": b"\x1f\x8b\x08\x00" + b"\x00" * 100,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize(
    "path",
    ["/v1/agent/facts", "/v1/agent/launch", "/v1/agent/enroll", "/v1/commands", "/v1/tokens"],
)
def test_bytes_that_are_no_message_are_refused(target: Target, path: str, body: bytes) -> None:
    before = target.store.head()
    agent = path.startswith("/v1/agent")
    answer = target.post(path, body, target.node if agent else target.approver)
    refused(target, answer)
    assert target.store.head() == before


FACTS = {
    "unknown field": facts({"argv": "--api-key secret"}),
    "unknown field of the batch": facts({}, hostname="n1"),
    "unknown kind of fact": facts({"type": "rm_rf"}),
    "no kind": facts({"type": None}),
    "a number for a text": facts({"rack": 5}),
    "a text for a flag": facts({"pool": "yes"}),
    "a text with spaces for a name": facts({"rack": "a b"}),
    "a text of 121 characters": facts({"rack": "r" * 121}),
    "SM blackwell": facts({"gpus": [{"uuid": "GPU-aaaa", "sm": "blackwell"}]}),
    "SM 10": facts({"gpus": [{"uuid": "GPU-aaaa", "sm": "10"}]}),
    "SM 10.7 and a line break": facts({"gpus": [{"uuid": "GPU-aaaa", "sm": "10.7\n"}]}),
    "negative memory": facts({"gpus": [{"uuid": "GPU-aaaa", "memory_bytes": -1}]}),
    "memory as a float": facts({"gpus": [{"uuid": "GPU-aaaa", "memory_bytes": 1.5}]}),
    "memory of 2**80": facts({"gpus": [{"uuid": "GPU-aaaa", "memory_bytes": 1 << 80}]}),
    "65 GPUs": facts({"gpus": [{"uuid": f"GPU-{n:04}"} for n in range(65)]}),
    "no facts": facts({}, facts=[]),
    "501 facts": facts({}, facts=[facts({})["facts"][0]] * 501),  # type: ignore[index]
    "sequence 0": facts({}, facts=[{"sequence": 0, "occurred_at_us": 1, "payload": cb.reported()}]),
    "sequence -5": facts(
        {}, facts=[{"sequence": -5, "occurred_at_us": 1, "payload": cb.reported()}]
    ),
    "sequence 2**63": facts(
        {}, facts=[{"sequence": 1 << 63, "occurred_at_us": 1, "payload": cb.reported()}]
    ),
    "sequence true": facts(
        {}, facts=[{"sequence": True, "occurred_at_us": 1, "payload": cb.reported()}]
    ),
    "a time before 1970": facts(
        {}, facts=[{"sequence": 2, "occurred_at_us": -1, "payload": cb.reported()}]
    ),
    "wire version 9": facts({}, wire_version=9),
    "an outbox that walks up": facts({}, outbox_id="../../etc/passwd"),
    "an outbox with a quote": facts({}, outbox_id="o'; DROP TABLE log_event; --"),
}


@pytest.mark.parametrize("body", FACTS.values(), ids=FACTS.keys())
def test_facts_of_the_wrong_shape_are_refused_with_the_place(
    target: Target, body: dict[str, object]
) -> None:
    before = target.store.head()
    answer = target.post("/v1/agent/facts", body, target.node)
    assert refused(target, answer, status=422) == "malformed"
    assert "`" in answer.json()["error"]["message"]
    assert target.store.head() == before


@pytest.mark.parametrize(
    ("batch", "status", "code"),
    [
        (facts({"rack": "other"}), 409, "conflict"),
        (
            facts({}, facts=[{"sequence": 3, "occurred_at_us": 1, "payload": cb.reported()}]),
            409,
            "sequence_gap",
        ),
        (
            facts({}, facts=[{"sequence": 1 << 52, "occurred_at_us": 1, "payload": cb.reported()}]),
            409,
            "sequence_gap",
        ),
        (facts({}, node="n2"), 403, "not_your_node"),
        (facts({}, node="nobody"), 403, "not_your_node"),
    ],
    ids=["from the past", "from the future", "from the far future", "another node", "no node"],
)
def test_facts_that_do_not_fit_the_log_are_refused(
    target: Target, batch: dict[str, object], status: int, code: str
) -> None:
    before = target.store.head()
    answer = target.post("/v1/agent/facts", batch, target.node)
    assert refused(target, answer, status=status) == code
    assert target.store.head() == before


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": [{"uuid": "GPU-aaaa", "sm": "blackwell"}]},
        {"argv": ["--api-key", "secret"]},
        {"nnodes": 0},
        {"platform": "tpu"},
        {"layout": {"tp": 0}},
        {"build": {"sglang_version": "0.5.23 && reboot"}},
        {"build": {"artifact_pins": {"a b": "zz"}}},
    ],
    ids=["SM blackwell", "argv", "no nodes", "a platform", "tp 0", "a version", "pins"],
)
def test_launches_of_the_wrong_shape_are_refused(target: Target, change: dict[str, object]) -> None:
    before = target.store.head()
    answer = target.post("/v1/agent/launch", launch(change), target.node)
    assert refused(target, answer, status=422) == "malformed"
    assert target.store.head() == before


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "token_missing"),
        ({"Authorization": ""}, "token_missing"),
        ({"Authorization": "Basic YTpi"}, "token_missing"),
        ({"Authorization": "Bearer"}, "token_missing"),
        ({"Authorization": "Bearer x"}, "token_malformed"),
        ({"Authorization": "Bearer " + "a" * 10_000}, "token_malformed"),
        ({"Authorization": "Bearer smgn_" + "A" * 43}, "token_unknown"),
        ({"Authorization": "Bearer smgn_' OR 1=1 --"}, "token_malformed"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/agent/facts", "/v1/commands"])
def test_a_wrong_token_is_refused(
    target: Target, path: str, headers: dict[str, str], code: str
) -> None:
    answer = target.http.post(path, json=facts({}), headers=headers)
    assert refused(target, answer, status=401) == code
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_token_of_the_wrong_kind_is_refused(target: Target) -> None:
    for path, token in (("/v1/agent/facts", target.approver), ("/v1/commands", target.node)):
        answer = target.post(path, facts({}), token)
        assert refused(target, answer, status=403) == "wrong_kind_of_token"


@pytest.mark.parametrize("path", ["/v1/agent/facts", "/v1/commands", "/nowhere", "/healthz"])
def test_a_hundred_mebibytes_are_refused_and_not_kept(target: Target, path: str) -> None:
    before, head = target.memory_mib(), target.store.head()
    answer = target.post(path, b"[" + b" " * (100 * MIB) + b"]", target.node)
    assert refused(target, answer, status=413) == "body_too_large"
    assert target.memory_mib() - before < 16
    assert target.store.head() == head


def test_a_hundred_mebibytes_without_a_length_are_refused_and_not_kept(target: Target) -> None:
    before = target.memory_mib()
    answer = target.http.post(
        "/v1/agent/facts",
        content=(b" " * MIB for _ in range(100)),
        headers=cb.bearer(target.node),
    )
    assert refused(target, answer, status=413) == "body_too_large"
    assert target.memory_mib() - before < 16


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/agent/directive?generation=-1", 422),
        ("GET", "/v1/agent/directive?generation=x", 422),
        ("GET", "/v1/agent/directive?wait=nan", 422),
        ("GET", "/v1/agent/directive?wait=inf", 422),
        ("GET", "/v1/agent/directive?wait=-1", 422),
        ("GET", f"/v1/agent/directive?generation={1 << 70}", 422),
        ("GET", "/v1/agent/launch/..%2F..%2Fetc", 404),
        ("GET", "/v1/agent/launch/none?wait=999999", 422),
        ("DELETE", "/v1/agent/facts", 405),
        ("GET", "/v1/agent/../commands", 405),
        ("GET", "/v1", 404),
        ("GET", "/v1/agent/", 404),
        ("GET", "/%00", 404),
        ("GET", "/v1/agent/launch/%ff%fe", 404),
    ],
)
def test_paths_and_parameters_that_mean_nothing_are_refused(
    target: Target, method: str, path: str, status: int
) -> None:
    answer = target.http.request(method, path, headers=cb.bearer(target.node))
    refused(target, answer, status=status)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/units/none",
        "/v1/units/none/why",
        "/v1/units/%00/why",
        "/v1/builds/none/why",
        "/v1/rollouts/none/why",
        "/v1/nodes/none",
        "/v1/events?after=-1",
        "/v1/events?limit=0",
        "/v1/events?limit=1000000",
        "/v1/units/none/why?at=" + "9" * 64,
        "/v1/units/none/why?at=0001-01-01T00:00:00",
        "/v1/units/none/why?at=9999-12-31T23:59:59%2B00:00",
    ],
)
def test_questions_without_an_answer_are_refused(target: Target, path: str) -> None:
    answer = target.http.get(path, headers=cb.bearer(target.approver))
    refused(target, answer)


def test_after_all_that_it_still_works(target: Target) -> None:
    assert target.http.get("/healthz").json() == {"status": "ok"}
    assert target.http.get("/readyz").status_code == 200
    again = target.post("/v1/agent/facts", facts({"rack": "r1"}), target.node)
    assert (again.status_code, again.json()["repeated"]) == (200, 1)
