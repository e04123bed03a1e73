"""The gate and its controller: a decision is obeyed, everything else ends in the local rule."""

import json
import time

import nacl.signing
import pytest
from tests.launch import stand_ins
from tests.launch.asking import ENFORCE, SAFE, TARGET, decide, serve

from smgate.wire import base, directive, facts

LONG_S = 120
AT_ONCE_S = LONG_S / 2
"""What costs the deadline costs more; how fast a busy machine is at once says nothing."""


@pytest.mark.parametrize(
    ("form", "value", "appended"),
    [("append", "marlin", SAFE), ("append", "flashinfer_mxfp4", TARGET), ("untouched", None, [])],
)
@pytest.mark.parametrize("delay_s", [0, 0.2], ids=["at once", "after a wait"])
def test_a_decision_is_obeyed_and_reported(sm107, k3, form, value, appended, delay_s):
    reply = stand_ins.honest(decide(form, value), delay_s)
    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, options=["--deadline-s", str(LONG_S)]) == appended
    assert {request[3] for request in controller.requests} == {"Bearer node-credential-of-a"}
    (launch,) = controller.launches()
    batch = base.decode(json.dumps(controller.requests[-1][2]).encode(), facts.FactsBatch)
    assert (batch.node, batch.outbox_id) == ("node-a", launch["launch_id"])
    (fact,) = batch.facts
    assert fact.sequence == 2
    assert fact.payload == facts.OverrideApplied(
        launch_id=launch["launch_id"],
        form="appended" if appended else "untouched",
        value=value,
        source="directive",
        code="no_rollout",
        generation=42,
        added_ms=fact.payload.added_ms,
    )
    assert 0 < fact.payload.added_ms < AT_ONCE_S * 1_000
    held = json.loads((sm107.state / "directive.json").read_text())
    assert base.decode(json.dumps(held).encode(), directive.SignedDirective)
    assert ("no_rollout, by directive" in sm107.stderr) == (sm107.stderr.count("\n") == 1)


def test_a_quick_answer_does_not_cost_the_deadline(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide())) as controller:
        sm107.enroll(controller.url)
        serve(sm107, k3, options=["--deadline-s", str(LONG_S)])
    assert sm107.took_s < AT_ONCE_S


def test_the_gate_waits_for_the_units_other_ranks(sm107, k3):
    calls = []

    def reply(request):
        method, _, body, _ = request
        calls.append(method)
        if method == "POST" and "launch" in body:
            reply.launch = body["launch"]
            other = {**body["launch"], "launch_id": "launch-of-another-rank"}
            return stand_ins.http_answer(stand_ins.answer(stand_ins.sign(decide()(other))))
        if len(calls) < 4:
            return stand_ins.http_answer(stand_ins.answer())
        return stand_ins.http_answer(stand_ins.answer(stand_ins.sign(decide()(reply.launch))))

    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == SAFE
    assert calls[:4] == ["POST", "GET", "GET", "GET"]


def test_the_agents_socket_is_asked_first_and_needs_no_credential(sm107, k3):
    path = sm107.folder / "agent.sock"
    honest = stand_ins.honest(decide())
    me = {
        "node": "node-a", "controller_url": "http://nowhere", "incarnation": "log-1",
        "public_key": stand_ins.PUBLIC_KEY, "directive": None,
    }  # fmt: skip

    def reply(request):
        return stand_ins.http_answer(me) if request[1] == "/v1/agent/identity" else honest(request)

    with stand_ins.Controller(reply, path=path) as agent:
        assert serve(sm107, k3) == SAFE
    assert [request[3] for request in agent.requests] == [None] * len(agent.requests)
    assert len(agent.requests) == 3


def test_a_dead_socket_falls_back_to_the_controller(sm107, k3):
    path = sm107.folder / "agent.sock"
    with stand_ins.Controller(lambda _: None, path=path):
        pass  # bound once, nobody listens any more
    with stand_ins.Controller(stand_ins.honest(decide())) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == SAFE


def test_an_agent_without_its_controller_still_hands_on_what_it_holds(sm107, k3):
    """A container has only the socket: the node's last directive comes through it."""
    path = sm107.folder / "agent.sock"
    held = stand_ins.sign(stand_ins.directive(modes=ENFORCE))
    me = {"node": "node-a", "public_key": stand_ins.PUBLIC_KEY, "directive": held}

    def reply(request):
        if request[1] == "/v1/agent/identity":
            return stand_ins.http_answer(me)
        return stand_ins.http_answer({"error": {}}, "502 Bad Gateway")

    with stand_ins.Controller(reply, path=path):
        assert serve(sm107, k3) == SAFE
    assert "controller_status_502" in sm107.stderr


def body_of(reply):
    def answer(request):
        if request[1] == "/v1/agent/facts":
            return stand_ins.http_answer({}, "503 Service Unavailable")
        return stand_ins.http_answer(reply(request))

    return answer


def signed_by_a_stranger(request):
    launch = (request[2] or {}).get("launch", {"launch_id": "x", "gpus": []})
    unit = stand_ins.entry(launch, "append", "flashinfer_mxfp4", "granted")
    return stand_ins.answer(
        stand_ins.sign(stand_ins.directive(unit), nacl.signing.SigningKey(b"\x09" * 32))
    )


def altered(request):
    launch = request[2]["launch"]
    signed = stand_ins.sign(stand_ins.directive(stand_ins.entry(launch)))
    return stand_ins.answer(
        {**signed, "signed": signed["signed"].replace("marlin", "flashinfer_mxfp4")}
    )


def of_another_node(request):
    unit = stand_ins.entry(request[2]["launch"], "append", "flashinfer_mxfp4", "granted")
    return stand_ins.answer(stand_ins.sign(stand_ins.directive(unit, node="node-b")))


def stale(request):
    unit = stand_ins.entry(request[2]["launch"], "append", "flashinfer_mxfp4", "granted")
    return stand_ins.answer(stand_ins.sign(stand_ins.directive(unit, generation=3)))


def with_field(**fields):
    def reply(request):
        unit = stand_ins.entry(request[2]["launch"], "append", "flashinfer_mxfp4", "granted")
        return stand_ins.answer(stand_ins.sign({**stand_ins.directive(unit), **fields}))

    return reply


def dribble(_request):
    def bytes_one_by_one():
        for byte in stand_ins.http_answer({"unit": "a"}):
            yield bytes([byte])
            time.sleep(0.5)

    return bytes_one_by_one()


def endless_header(_request):
    def parts():
        yield b"HTTP/1.1 200 OK\r\n"
        for index in range(10_000_000):
            yield b"X-%d: y\r\n" % index
            time.sleep(0.01)

    return parts()


def huge(_request):
    def parts():
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"
        for _ in range(100):
            yield b" " * (1 << 20)

    return parts()


REDIRECT = "Location: http://127.0.0.1:9/elsewhere\r\n"
LIES = {
    "wrong signature": (body_of(signed_by_a_stranger), "signature_bad"),
    "altered after signing": (body_of(altered), "signature_bad"),
    "another node's directive": (body_of(of_another_node), "directive_of_another_node"),
    "an older directive": (body_of(stale), "directive_stale"),
    "unknown field": (body_of(with_field(extra=1)), "directive_malformed"),
    "wrong version": (body_of(with_field(wire_version=2)), "directive_malformed"),
    "units of another type": (body_of(with_field(units="all")), "directive_malformed"),
    "value of another type": (body_of(with_field(units=[{"unit": 1}])), "directive_malformed"),
    "an SM that is none": (body_of(with_field(modes={"blackwell": "enforce"})), "directive_malformed"),
    "not JSON": (lambda _: stand_ins.http_answer(b"<html>"), "answer_malformed"),
    "a list": (lambda _: stand_ins.http_answer([]), "answer_malformed"),
    "nothing": (lambda _: stand_ins.http_answer(b""), "answer_malformed"),
    "NaN": (lambda _: stand_ins.http_answer(b'{"unit": NaN}'), "answer_malformed"),
    "deep": (lambda _: stand_ins.http_answer(b"[" * 900_000), "answer_malformed"),
    "answer of another schema": (
        lambda _: stand_ins.http_answer({"unit": "a", "kernel_key": None, "argv": ["--x"]}),
        "answer_malformed",
    ),
    "a hundred megabytes": (huge, "answer_too_large"),
    "401": (lambda _: stand_ins.http_answer({}, "401 Unauthorized"), "controller_status_401"),
    "a redirect": (lambda _: stand_ins.http_answer({}, "302 Found", REDIRECT), "controller_status_302"),
    "404": (lambda _: stand_ins.http_answer({}, "404 Not Found"), "controller_status_404"),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "code"), LIES.values(), ids=LIES)
def test_a_lie_ends_in_the_local_rule_at_once(sm107, k3, reply, code):
    sm107.hold(stand_ins.directive(modes=ENFORCE, generation=7))
    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, options=["--deadline-s", str(LONG_S)]) == SAFE
    assert f"because of {code};" in sm107.stderr
    assert sm107.took_s < AT_ONCE_S
    held = json.loads(json.loads((sm107.state / "directive.json").read_text())["signed"])
    assert held["generation"] == 7


def silent(_request):
    return None


def hangs_up(_request):
    return b""


def talks_nonsense(_request):
    return b"SSH-2.0-OpenSSH_9.2\r\n"


SLOW = {"never answers": silent, "one byte every half second": dribble}
"""Only the timer ends these."""
BROKEN = {
    "a header without end": endless_header,
    "hangs up": hangs_up,
    "hangs up in the middle": lambda _: stand_ins.http_answer({"unit": "a"})[:-3],
    "is no web server": talks_nonsense,
    "500": lambda _: stand_ins.http_answer({}, "500 Internal Server Error"),
    "429": lambda _: stand_ins.http_answer({}, "429 Too Many Requests"),
}


@pytest.mark.parametrize("reply", SLOW.values(), ids=SLOW)
def test_a_controller_that_does_not_answer_adds_less_than_ten_seconds(sm107, k3, reply):
    sm107.hold(stand_ins.directive(modes=ENFORCE))
    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == SAFE
    assert "because of controller_silent;" in sm107.stderr
    assert sm107.took_s < 10


@pytest.mark.parametrize("reply", {**SLOW, **BROKEN}.values(), ids={**SLOW, **BROKEN})
def test_a_short_deadline_is_kept(sm107, k3, reply):
    sm107.hold(stand_ins.directive(modes=ENFORCE))
    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, options=["--deadline-s", "2"]) == SAFE
    assert sm107.took_s < 6


def test_an_absent_controller_adds_less_than_ten_seconds(sm107, k3):
    with stand_ins.Controller(silent) as controller:
        sm107.enroll(controller.url)
    assert serve(sm107, k3, options=["--on-doubt", "safe"]) == SAFE
    assert "because of controller_unreachable;" in sm107.stderr
    assert sm107.took_s < 10


@pytest.mark.parametrize(
    "url",
    ["http://no-such-host.invalid:1", "ftp://x", "http://", "nonsense", "http://h:port", "http://[:"],
)  # fmt: skip
def test_an_address_that_leads_nowhere_is_survived(sm107, k3, url):
    sm107.enroll(url)
    assert serve(sm107, k3, options=["--on-doubt", "safe", "--deadline-s", "3"]) == SAFE
    assert sm107.took_s < 8


def test_a_controller_that_decides_never_costs_the_deadline(sm107, k3):
    reply = body_of(lambda _: stand_ins.answer(retry_after_s=1))
    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        options = ["--deadline-s", "3", "--on-doubt", "safe"]
        assert serve(sm107, k3, options=options) == SAFE
        assert len(controller.requests) < 10
    assert sm107.took_s < 8
    # It answered, so it is told what was done without it.
    (fact,) = controller.facts()
    assert (fact["payload"]["source"], fact["payload"]["code"]) == ("local_rule", "local_safe")
