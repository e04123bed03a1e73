"""Which directives count."""

import json
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from nacl.signing import SigningKey
from tests.agent.test_delivery import credential_for

from smgate.wire import directive
from smgate_agent import bake, clock, controller_link, directive_poll
from smgate_agent.launch import contact, ed25519


def make(generation, *, node="node-1", incarnation="log-1", **more):
    return directive.Directive(
        incarnation=incarnation, generation=generation, node=node, issued_at_us=1, **more
    )


@pytest.fixture
def holder(controller, tmp_path):
    return open_holder(controller, tmp_path)


def open_holder(controller, tmp_path):
    return directive_poll.Holder(
        tmp_path,
        credential=credential_for(controller.url, controller),
        verify=ed25519.verify,
    )


def refusal(holder, body):
    with pytest.raises(directive_poll.RefusedError) as caught:
        holder.take(body)
    return caught.value.code


def test_a_signed_directive_is_held_and_found_again(controller, tmp_path, holder):
    assert holder.held is None
    body = controller.sign(make(5))
    assert holder.take(body) is None
    assert holder.held == make(5)
    assert open_holder(controller, tmp_path).held == make(5)
    assert (tmp_path / "directive.json").read_bytes() == body


def test_an_older_generation_is_refused_and_an_equal_one_may_say_more(controller, holder):
    holder.take(controller.sign(make(5)))
    assert refusal(holder, controller.sign(make(4))) == "generation_old"
    holder.take(controller.sign(make(5, modes={"10.7": "enforce"})))
    assert holder.held.modes == {"10.7": "enforce"}


def test_a_new_incarnation_wins_over_any_generation_and_the_old_one_never_returns(
    controller, tmp_path, holder
):
    holder.take(controller.sign(make(900)))
    left = holder.take(controller.sign(make(3, incarnation="log-2")))
    assert (left.restored_as, left.incarnation, left.generation) == ("log-2", "log-1", 900)
    assert holder.held.generation == 3
    assert refusal(holder, controller.sign(make(901))) == "incarnation_left"
    again = open_holder(controller, tmp_path)
    assert again.incarnation == "log-2"
    assert refusal(again, controller.sign(make(902))) == "incarnation_left"


@pytest.mark.parametrize("held", [None, 1])
def test_a_directive_signed_by_another_key_is_refused(controller, holder, held):
    if held:
        holder.take(controller.sign(make(held)))
    controller.signing_key = SigningKey.generate()
    assert refusal(holder, controller.sign(make(9))) == "signature_wrong"
    assert (holder.held is None) is (held is None)


def test_a_directive_of_another_node_is_refused(controller, holder):
    assert refusal(holder, controller.sign(make(1, node="node-2"))) == "directive_of_another_node"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"signed": "x", "signature": "00"}'])
def test_what_is_no_directive_is_refused(holder, body):
    assert refusal(holder, body) == "directive_malformed"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
def test_no_change_of_a_signed_directive_is_taken(controller, tmp_path, data):
    holder = open_holder(controller, tmp_path)
    body = bytearray(controller.sign(make(5)))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        holder.take(bytes(body))
    except directive_poll.RefusedError:
        assert holder.held is None
    else:
        assert holder.held == make(5)  # another spelling of the same message
        (tmp_path / "directive.json").unlink()


def test_a_held_file_that_was_tampered_with_is_not_held(controller, tmp_path, holder):
    holder.take(controller.sign(make(5)))
    path = tmp_path / "directive.json"
    path.write_bytes(path.read_bytes().replace(b'generation\\":5', b'generation\\":6'))
    assert open_holder(controller, tmp_path).held is None


def test_a_newer_one_that_a_launch_gate_wrote_is_not_replaced_by_an_older_one(
    controller, tmp_path, holder
):
    holder.take(controller.sign(make(5)))
    (tmp_path / "directive.json").write_bytes(controller.sign(make(8)))
    assert refusal(holder, controller.sign(make(7))) == "generation_old"
    assert holder.held.generation == 8


@pytest.fixture
def poll(controller, holder):
    link = controller_link.Link(
        credential_for(controller.url, controller), clock_=clock.SystemClock()
    )
    rewound = []
    stop = threading.Event()
    poller = directive_poll.Poller(
        link=link,
        holder=holder,
        clock_=clock.SystemClock(),
        wait_s=20,
        jitter=lambda: 0.0,
        stop=stop,
        on_another_log=rewound.append,
        on_confirmed=lambda held: None,
        on_baking=lambda _header: None,
    )
    thread = threading.Thread(target=poller.run)
    thread.start()
    yield holder, link, rewound
    stop.set()
    started = time.monotonic()
    link.close()
    thread.join(10)
    assert time.monotonic() - started < 5, "a waiting long-poll held up the end"


def test_the_long_poll_brings_a_directive_at_once_and_says_which_is_held(controller, poll):
    holder, link, _ = poll
    assert controller.wait_for(lambda: len(controller.requests) == 1)
    controller.publish(make(5))
    assert controller.wait_for(lambda: any("generation=5" in r[1] for r in controller.requests))
    assert holder.held == make(5)
    assert link.state.reachable


def test_every_answer_of_the_controller_is_noted_as_contact_and_nothing_else_is(
    controller, tmp_path, poll
):
    note = tmp_path / "contact.json"
    assert controller.wait_for(lambda: len(controller.requests) == 1)
    assert not note.exists()
    controller.publish(make(5))
    assert controller.wait_for(note.exists)
    noted = json.loads(note.read_text())
    assert contact.unheard_s(noted, None, contact.now()) < 60
    note.unlink()
    controller.signing_key = SigningKey.generate()
    controller.publish(make(6))
    _, link, _ = poll
    assert controller.wait_for(lambda: link.state.code == "signature_wrong")
    assert not note.exists()


def test_each_answer_says_whose_intervals_count_and_an_older_controller_says_nothing(
    controller, holder
):
    link = controller_link.Link(
        credential_for(controller.url, controller), clock_=clock.SystemClock()
    )
    wanted = bake.Wanted()
    poller = directive_poll.Poller(
        link=link,
        holder=holder,
        clock_=clock.SystemClock(),
        wait_s=0,
        jitter=lambda: 0.0,
        stop=threading.Event(),
        on_another_log=lambda _held: None,
        on_confirmed=lambda _held: None,
        on_baking=wanted.tell,
    )

    def after(header):
        controller.baking = header
        assert not poller.step()
        return [name for name in ("k3", "k4") if wanted.of(name)]

    assert [name for name in ("k3", "k4") if wanted.of(name)] == ["k3", "k4"]
    assert after("k4,other") == ["k4"]
    assert after("") == []
    controller.publish(make(5))
    assert after("k3,k4") == ["k3", "k4"]  # with a directive, too
    assert after("") == []
    assert after(None) == ["k3", "k4"]
    assert after("") == []
    link.close()
    controller.signing_key = SigningKey.generate()
    controller.publish(make(6))
    assert poller.step()
    assert not wanted.of("k3"), "what was told last holds while nobody answers"


def test_a_restored_log_has_kept_facts_sent_again(controller, poll):
    _holder, _, rewound = poll
    controller.publish(make(5))
    assert controller.wait_for(lambda: any("generation=5" in r[1] for r in controller.requests))
    assert rewound == []
    controller.publish(make(2, incarnation="log-2"))
    assert controller.wait_for(lambda: any("generation=2" in r[1] for r in controller.requests))
    (held,) = rewound
    assert (held.restored_as, held.incarnation, held.generation) == ("log-2", "log-1", 5)


def test_a_controller_that_lies_is_not_asked_in_a_tight_loop(controller, poll):
    _, link, _ = poll
    controller.signing_key = SigningKey.generate()
    controller.publish(make(5))
    assert controller.wait_for(lambda: len(controller.requests) >= 2)
    time.sleep(1)
    assert link.state.code == "signature_wrong"
    assert len(controller.requests) <= 5
