"""The Unix socket: relays what a launch gate may ask, with limits, and nothing else."""

import http.client
import json
import socket
import stat
import threading

import pytest
from tests.agent import fake_controller
from tests.agent.test_delivery import credential_for

from smgate.wire import base
from smgate_agent import clock, controller_link, gate_socket, http1


@pytest.fixture
def serve(tmp_path, controller):
    servers = []
    stop = threading.Event()

    def make(url=controller.url, new_link=None):
        credential = credential_for(url, controller)
        server = gate_socket.GateSocket(
            tmp_path / "agent.sock",
            credential=credential,
            state_dir=tmp_path,
            new_link=new_link
            or (
                lambda: controller_link.Link(
                    credential, clock_=clock.SystemClock(), keep_alive=False
                )
            ),
        )
        thread = threading.Thread(target=server.run, args=(stop,))
        thread.start()
        servers.append((server, thread))
        return tmp_path / "agent.sock"

    yield make
    stop.set()
    for server, thread in servers:
        server.hide()
        thread.join(5)


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


def ask(path, method, target, body=None, headers=None):
    connection = Connection(path)
    connection.request(method, target, body=body, headers=headers or {})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, answer


def code(answer):
    return base.decode(answer, base.ErrorBody).error.code


def test_the_socket_is_for_its_owner_and_group_alone(serve):
    path = serve()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/v1/agent/launch", b'{"launch": 1}'),
        ("GET", "/v1/agent/launch/launch-1?wait=5", None),
        ("GET", "/v1/agent/launch/a.b:c@d+e-f", None),
    ],
)
def test_what_a_gate_asks_is_relayed_with_the_nodes_credential(
    serve, controller, method, target, body
):
    status, answer = ask(serve(), method, target, body, {"Authorization": "Bearer forged"})
    assert status == 200
    assert json.loads(answer) == {"path": target, "body": (body or b"").decode()}
    assert controller.requests[-1][2]["authorization"] == f"Bearer {fake_controller.CREDENTIAL}"


def test_a_refusal_of_the_controller_comes_through_unchanged(serve, controller):
    controller.script.append((409, fake_controller.error("sequence_gap")))
    status, answer = ask(serve(), "POST", "/v1/agent/facts", b"{}")
    assert (status, code(answer)) == (409, "sequence_gap")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/agent/enroll"),
        ("GET", "/v1/agent/directive?generation=0&wait=0"),
        ("GET", "/v1/agent/launch/../directive"),
        ("GET", "/v1/agent/launch/a/b"),
        ("GET", "/v1/agent/launch/a?wait=1&x=2"),
        ("GET", "/v1/agent/facts"),
        ("GET", "/metrics"),
        ("POST", "/v1/units"),
    ],
)
def test_nothing_else_is_relayed(serve, controller, method, target):
    body = b"{}" if method == "POST" else None
    status, answer = ask(serve(), method, target, body)
    assert (status, code(answer)) == (404, "not_found")
    assert controller.requests == []


def test_who_the_gate_speaks_for_is_answered_without_the_controller(serve, tmp_path, controller):
    path = serve("http://127.0.0.1:9")
    status, answer = ask(path, "GET", "/v1/agent/identity")
    said = json.loads(answer)
    assert status == 200
    assert (said["node"], said["directive"]) == ("node-1", None)
    assert said["public_key"] == controller.key.verify_key.encode().hex()
    assert fake_controller.CREDENTIAL.encode() not in answer
    (tmp_path / "directive.json").write_bytes(b'{"signed":"x","signature":"%s"}' % (b"0" * 128))
    said = json.loads(ask(path, "GET", "/v1/agent/identity")[1])
    assert said["directive"] == {"signed": "x", "signature": "0" * 128}
    assert said["heard"] is None
    (tmp_path / "contact.json").write_text('{"at_us": 1}')
    assert json.loads(ask(path, "GET", "/v1/agent/identity")[1])["heard"] == {"at_us": 1}
    (tmp_path / "directive.json").write_bytes(b"{")
    (tmp_path / "contact.json").write_bytes(b"{")
    said = json.loads(ask(path, "GET", "/v1/agent/identity")[1])
    assert (said["directive"], said["heard"]) == (None, None)


def test_an_absent_controller_is_a_502_with_a_code(serve):
    status, answer = ask(serve("http://127.0.0.1:9"), "POST", "/v1/agent/launch", b"{}")
    assert (status, code(answer)) == (502, "controller_refused")


def test_a_body_larger_than_the_controller_reads_is_refused_before_it_is_read(serve):
    headers = {"Content-Length": str(base.BODY_BYTES_MAX + 1)}
    status, answer = ask(serve(), "POST", "/v1/agent/launch", None, headers)
    assert (status, code(answer)) == (413, "body_too_large")


@pytest.mark.parametrize("length", ["-1", "x", "1e3", ""])
def test_a_body_without_a_length_is_refused(serve, length):
    status, answer = ask(serve(), "POST", "/v1/agent/facts", None, {"Content-Length": length})
    assert (status, code(answer)) == (411, "length_required")


def test_garbage_on_the_socket_harms_nobody(serve):
    path = serve()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"\x00\xff\r\n\r\n" * 100)
        sock.settimeout(5)
        while sock.recv(65536):
            pass
    assert ask(path, "GET", "/v1/agent/identity")[0] == 200


def test_several_gates_wait_at_once_and_too_many_are_told_to_come_again(serve):
    held = threading.Event()
    release = threading.Event()
    waiting = []

    class Slow:
        def request(self, method, path, *, timeout_s, body=None):
            waiting.append(path)
            held.set()
            assert release.wait(10)
            return http1.Answer(status=200, body=b"{}")

        def close(self):
            pass

    path = serve(new_link=Slow)
    statuses = []

    def gate(number):
        statuses.append(ask(path, "GET", f"/v1/agent/launch/l-{number}?wait=5")[0])

    threads = [threading.Thread(target=gate, args=(n,)) for n in range(gate_socket.RELAYS_MAX + 3)]
    for thread in threads:
        thread.start()
    assert held.wait(5)
    for thread in threads:
        if statuses.count(503) >= 3:
            break
        thread.join(0.2)
    release.set()
    for thread in threads:
        thread.join(10)
    assert statuses.count(200) == gate_socket.RELAYS_MAX
    assert statuses.count(503) == 3
