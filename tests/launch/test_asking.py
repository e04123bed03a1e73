"""The gate and its controller: a decision is obeyed, everything else ends in the local rule."""

import json
import time

import nacl.signing
import pytest
from tests.launch import nvml_library, stand_ins

from smgate.wire import base, directive, facts
from smgate_agent.launch import local_rule

SAFE = ["--moe-runner-backend", "marlin"]
TARGET = ["--moe-runner-backend", "flashinfer_mxfp4"]
ENFORCE = {"10.7": "enforce"}


def serve(node, k3, *more, **keywords):
    """Launch Kimi K3; returns what was appended."""
    argv = ["serve", "--model-path", str(k3), *more]
    seen = node.launch("sglang", *argv, **keywords)["argv"][1:]
    assert seen[: len(argv)] == argv
    return seen[len(argv) :]


def given_for(planned):
    """What an honest controller would write into a decision about this launch."""
    return local_rule.given_for(planned)


def decide(form="append", value="marlin", code="no_rollout", **changes):
    def with_launch(launch):
        unit = stand_ins.entry(launch, form, value, code, given_for=given_for(launch))
        return stand_ins.directive(unit, **changes)

    return with_launch


@pytest.mark.parametrize(
    ("form", "value", "appended"),
    [("append", "marlin", SAFE), ("append", "flashinfer_mxfp4", TARGET), ("untouched", None, [])],
)
@pytest.mark.parametrize("delay_s", [0, 0.2], ids=["at once", "after a wait"])
def test_a_decision_is_obeyed_and_reported(sm107, k3, form, value, appended, delay_s):
    reply = stand_ins.honest(decide(form, value), delay_s)
    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == appended
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
    assert 0 < fact.payload.added_ms < 5_000
    held = json.loads((sm107.state / "directive.json").read_text())
    assert base.decode(json.dumps(held).encode(), directive.SignedDirective)
    assert ("no_rollout, by directive" in sm107.stderr) == (sm107.stderr.count("\n") == 1)


def test_a_quick_answer_adds_less_than_three_seconds(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide())) as controller:
        sm107.enroll(controller.url)
        serve(sm107, k3)
    assert sm107.took_s < 3


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
        return stand_ins.http_answer(me) if request[1] == "/v1/agent/self" else honest(request)

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
        if request[1] == "/v1/agent/self":
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
        assert serve(sm107, k3) == SAFE
    assert f"because of {code};" in sm107.stderr
    assert sm107.took_s < 6
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
    assert sm107.took_s < 4


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
    assert sm107.took_s < 6


def test_a_controller_that_decides_never_costs_the_deadline(sm107, k3):
    reply = body_of(lambda _: stand_ins.answer(retry_after_s=1))
    with stand_ins.Controller(reply) as controller:
        sm107.enroll(controller.url)
        options = ["--deadline-s", "3", "--on-doubt", "safe"]
        assert serve(sm107, k3, options=options) == SAFE
        assert len(controller.requests) < 10
    assert sm107.took_s < 5
    # It answered, so it is told what was done without it.
    (fact,) = controller.facts()
    assert (fact["payload"]["source"], fact["payload"]["code"]) == ("local_rule", "local_safe")


def test_a_verified_directive_holds_while_the_controller_is_away(sm107, k3):
    with stand_ins.Controller(
        stand_ins.honest(decide("append", "flashinfer_mxfp4", "granted"))
    ) as it:
        sm107.enroll(it.url)
        assert serve(sm107, k3) == TARGET
        (launch,) = it.launches()
    held = stand_ins.directive(
        stand_ins.entry(
            launch, "append", "flashinfer_mxfp4", "granted",
            unit="node-a:" + unit_digest(launch), given_for=given_for(launch),
        ),
        modes=ENFORCE,
    )  # fmt: skip
    sm107.hold(held)
    sm107.enroll(None)
    assert serve(sm107, k3) == TARGET
    assert "granted, by local rule" in sm107.stderr
    # Another layout is another kernel: the held decision does not speak of it.
    assert serve(sm107, k3, "--tp", "2") == SAFE


def unit_digest(launch):
    from smgate_agent.launch import kernel_key

    return kernel_key.unit_id("node-a", launch).partition(":")[2]


def test_keep_appends_again_what_was_appended_last(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("append", "flashinfer_mxfp4"))) as controller:
        sm107.enroll(controller.url)
        serve(sm107, k3)
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == TARGET
        assert serve(sm107, k3, "--tp", "2") == SAFE


def test_keep_with_a_value_appends_what_the_controller_worked_out(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("keep", "marlin", "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == SAFE


def test_keep_never_beats_a_flag_that_a_person_wrote(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("append", "flashinfer_mxfp4"))) as controller:
        sm107.enroll(controller.url)
        serve(sm107, k3)
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        seen = sm107.launch(
            *("sglang", "serve", "--model-path", str(k3), "--moe-runner-backend", "triton")
        )
        assert seen["argv"][-1] == "triton"


def test_ranks_do_not_keep_what_only_one_of_them_remembers(sm107, k3):
    ranks = ("--nnodes", "2", "--dist-init-addr", "head:20000")
    with stand_ins.Controller(stand_ins.honest(decide("append", "marlin"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, *ranks) == SAFE
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, *ranks) == []


def test_gate_and_agent_mean_the_same_socket():
    from smgate_agent import config
    from smgate_agent.launch import options

    assert config.DEFAULT_SOCKET == options.AGENT_SOCKET


def test_keep_without_a_past_leaves_the_command_alone(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("keep", None, "observe"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3) == []


def test_a_held_directive_that_was_tampered_with_is_not_held(sm107, k3):
    sm107.enroll(None)
    sm107.hold(stand_ins.directive(modes=ENFORCE), nacl.signing.SigningKey(b"\x09" * 32))
    assert serve(sm107, k3) == []
    (sm107.state / "directive.json").write_bytes(b"\xff" * 100)
    assert serve(sm107, k3) == []


@pytest.mark.parametrize(
    ("value", "more", "sm"),
    [
        ("flashinfer_mxfp4", [], "9.0"),
        ("flashinfer_mxfp4", ["--moe-a2a-backend", "deepep"], "10.7"),
        ("marlin", ["--moe-a2a-backend", "deepep"], "10.7"),
        ("marlin", [], "8.0"),
        ("triton", [], "10.7"),
    ],
)
def test_a_decision_with_which_sglang_would_not_start_is_not_carried_out(node, k3, value, more, sm):
    gpus = [{"uuid": "GPU-0000-aaaa", "sm": sm}]
    node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(node.folder / "nvml", gpus))
    with stand_ins.Controller(stand_ins.honest(decide("append", value, "granted"))) as controller:
        node.enroll(controller.url)
        assert serve(node, k3, *more) == []
    (fact,) = controller.facts()
    assert fact["payload"]["code"] == "value_would_not_start"


def test_an_operators_own_runner_wins_unless_the_decision_for_this_launch_says_otherwise(sm107, k3):
    sm107.hold(stand_ins.directive(modes=ENFORCE))
    sm107.enroll(None)
    assert serve(sm107, k3, "--moe-runner-backend", "triton") == []
    # The flag was adopted: a person gave it to the controller, whose decision comes last and wins.
    with stand_ins.Controller(stand_ins.honest(decide("append", "marlin"))) as controller:
        sm107.enroll(controller.url)
        assert serve(sm107, k3, "--moe-runner-backend", "triton") == SAFE


def test_nothing_is_appended_to_a_command_that_could_not_be_read(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide("append", "marlin"))) as controller:
        sm107.enroll(controller.url)
        seen = sm107.launch("/bin/sh", "-c", 'exec sglang serve --model-path "$0"', str(k3))
    assert seen["argv"][1:] == ["serve", "--model-path", str(k3)]
    assert "choice_unknown" in sm107.stderr


def test_the_resident_agent_finds_the_launch_by_its_record(sm107, k3):
    from smgate_agent import launch_records

    seen = sm107.launch("sglang", "serve", "--model-path", str(k3))
    (record,) = launch_records.read_all(sm107.state, now_us=time.time_ns() // 1_000)
    assert record.pid == seen["pid"]
    assert record.gpu_uuids == ("GPU-0000-aaaa", "GPU-0001-aaaa")
    assert (record.model_path, record.mxfp4) == (str(k3), True)
    assert record.architecture == "KimiK3ForConditionalGeneration"


def test_a_read_only_or_full_state_folder_does_not_matter(sm107, k3):
    with stand_ins.Controller(stand_ins.honest(decide())) as controller:
        sm107.enroll(controller.url)
        (sm107.state / "launches").write_text("a file where a folder should be")
        (sm107.state / "last_appended").write_text("")
        (sm107.state / "models").symlink_to("/proc/self/nothing")
        (sm107.state / "directive.json").mkdir()
        assert serve(sm107, k3) == SAFE
