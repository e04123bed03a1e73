"""From the outbox to the controller, through refusals, outages and restores."""

import threading

import pytest
from tests.agent import fake_controller

from smgate.wire import facts
from smgate_agent import clock, controller_link, delivery, identity


def credential_for(url, controller=None):
    key = controller.key.verify_key.encode().hex() if controller else "00" * 32
    return identity.Credential(
        node="node-1",
        controller_url=url,
        credential=fake_controller.CREDENTIAL,
        public_key=key,
        incarnation="log-1",
    )


@pytest.fixture
def deliverer(controller, box):
    link = controller_link.Link(credential_for(controller.url), clock_=clock.SystemClock())
    yield delivery.Deliverer(link=link, outbox_=box, jitter=lambda: 0.0, stop=threading.Event())
    link.close()


def fault(xid):
    return facts.GpuFaultSeen(gpu_uuid="GPU-1", xid=xid)


def send_all(deliverer, *, tries=50):
    for _ in range(tries):
        if deliverer.step() == (False, False):
            return
    raise AssertionError("still something to send")


def test_facts_arrive_in_order_once_and_are_acknowledged(controller, box, deliverer):
    for number in range(1200):
        box.append(fault(number))
    send_all(deliverer)
    assert [fact.xid for fact in controller.stored] == list(range(1200))
    assert box.standing().depth == 0
    assert box.standing().last_acknowledged_at_us is not None
    assert deliverer._link.state.reachable
    assert all(request[2]["host"] for request in controller.requests)


def test_one_connection_is_kept_between_batches(controller, box, deliverer):
    box.append(fault(1))
    send_all(deliverer)
    first = deliverer._link._client._sock
    box.append(fault(2))
    send_all(deliverer)
    assert first is not None
    assert deliverer._link._client._sock is first


def test_a_connection_the_controller_closed_is_opened_again(controller, box, deliverer):
    box.append(fault(1))
    send_all(deliverer)
    deliverer._link._client._sock.close()
    box.append(fault(2))
    send_all(deliverer)
    assert len(controller.stored) == 2


def test_an_answer_lost_on_its_way_is_repeated_and_stored_once(controller, box, deliverer):
    box.append(fault(1))
    controller.script.append((200, b"not an acknowledgement"))
    assert deliverer.step() == (True, True)
    assert deliverer._link.state.code == "acknowledgement_malformed"
    send_all(deliverer)
    assert controller.stored == [fault(1)]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 302, 404, 418])
def test_a_busy_controller_is_asked_again_and_nothing_is_lost(controller, box, deliverer, status):
    box.append(fault(1))
    controller.script.append((status, fake_controller.error("busy")))
    assert deliverer.step() == (True, True)
    assert deliverer._link.state.code == "busy"
    assert deliverer._link.state.refused is (status in {404, 418})
    send_all(deliverer)
    assert controller.stored == [fault(1)]
    assert box.standing().outbox_id == "outbox-1"


@pytest.mark.parametrize("status", [400, 404, 409, 410, 413, 422, 451])
@pytest.mark.parametrize("code", ["of_a_later_release", "not_finalized", None])
def test_a_refusal_that_nobody_knows_keeps_every_fact_and_says_so(
    controller, box, deliverer, status, code
):
    body = b"<html>a proxy" if code is None else fake_controller.error(code)
    for number in range(4):
        box.append(fault(number))
    controller.script += [(status, body)] * 9
    for _ in range(9):
        assert deliverer.step() == (True, True)  # it failed: the next try waits
    state = deliverer._link.state
    assert (state.reachable, state.code, state.refused) == (
        True,
        code or f"http_{status}",
        True,
    )
    standing = box.standing()
    assert (standing.outbox_id, standing.depth, standing.dropped) == ("outbox-1", 4, 0)
    send_all(deliverer)
    assert controller.stored == [fault(number) for number in range(4)]
    assert not deliverer._link.state.refused


@pytest.mark.parametrize("status", [401, 403])
def test_without_permission_facts_are_kept_and_the_state_says_so(
    controller, box, deliverer, status
):
    box.append(fault(1))
    controller.script += [(status, fake_controller.error("token_unknown"))] * 5
    for _ in range(5):
        assert deliverer.step() == (True, True)
    assert deliverer._link.state == controller_link.LinkState(
        reachable=True, code="token_unknown", last_contact_us=deliverer._link.state.last_contact_us
    )
    assert box.standing().depth == 1
    send_all(deliverer)
    assert controller.stored == [fault(1)]


def test_a_restored_log_gets_again_what_it_lacks(controller, box, deliverer):
    for number in range(5):
        box.append(fault(number))
    send_all(deliverer)
    for sequence in (3, 4, 5):
        del controller.streams["outbox-1"][sequence]
    box.append(fault(5))
    send_all(deliverer)
    assert [fact.xid for fact in controller.stored] == list(range(6))
    assert list(controller.streams) == ["outbox-1"]


def test_a_log_that_lacks_more_than_is_kept_begins_a_new_outbox(
    controller, box, deliverer, manual_clock
):
    box.append(fault(0))
    send_all(deliverer)
    manual_clock.advance(8 * 86400)
    box.append(fault(1))
    send_all(deliverer)
    controller.streams.clear()
    box.append(fault(2))
    send_all(deliverer)
    assert [name for name, stream in controller.streams.items() if stream] == ["outbox-2"]
    # What was acknowledged before the loss and has outlived its time is the gap.
    assert controller.stored == [
        facts.GapNoticed(lost_outbox_id="outbox-1"),
        fault(1),
        fault(2),
    ]


def test_a_conflict_begins_a_new_outbox_with_what_was_not_acknowledged(controller, box, deliverer):
    stranger = facts.Fact(sequence=1, occurred_at_us=1, payload=fault(77))
    controller.streams["outbox-1"] = {1: stranger}
    box.append(fault(1))
    box.append(fault(2))
    send_all(deliverer)
    assert [payload for payload in controller.stored if payload != fault(77)] == [
        facts.GapNoticed(lost_outbox_id="outbox-1"),
        fault(1),
        fault(2),
    ]


def test_an_outbox_that_belongs_to_another_node_is_left_to_it(controller, box, deliverer):
    box.append(fault(1))
    controller.script.append((403, fake_controller.error("not_your_outbox")))
    send_all(deliverer)
    assert list(controller.streams) == ["outbox-2"]
    assert controller.stored == [facts.GapNoticed(lost_outbox_id="outbox-1"), fault(1)]


def test_a_batch_that_is_too_large_is_halved(controller, box, deliverer):
    for number in range(8):
        box.append(fault(number))
    controller.script += [(413, b""), (413, b"")]
    deliverer.step()
    deliverer.step()
    deliverer.step()
    assert len(controller.stored) == 2
    send_all(deliverer)
    assert len(controller.stored) == 8


def test_one_fact_the_controller_refuses_costs_that_fact_alone(controller, box, deliverer):
    for number in range(3):
        box.append(fault(number))
    # 3, then 1, refused; then the new outbox goes through.
    controller.script += [(422, fake_controller.error("malformed"))] * 2
    send_all(deliverer)
    assert controller.stored == [facts.GapNoticed(lost_outbox_id="outbox-1"), fault(1), fault(2)]
    assert box.standing().dropped == 1


def test_an_absent_controller_is_not_reachable_and_costs_nothing(box):
    link = controller_link.Link(credential_for("http://127.0.0.1:9"), clock_=clock.SystemClock())
    away = delivery.Deliverer(link=link, outbox_=box, jitter=lambda: 0.0, stop=threading.Event())
    box.append(fault(1))
    assert away.step() == (True, True)
    assert link.state == controller_link.LinkState(reachable=False, code="controller_refused")
    assert box.standing().depth == 1


def test_waits_grow_to_a_limit_and_are_spread():
    waits = [delivery.backoff_s(failures, 0.0) for failures in range(1, 30)]
    assert waits == sorted(waits)
    assert waits[0] == 0.5
    assert delivery.backoff_s(1000, 1.0) == delivery.BACKOFF_MAX_S
    assert delivery.backoff_s(1000, 0.0) == delivery.BACKOFF_MAX_S / 2


def test_the_thread_sends_what_is_appended_and_ends_when_told(controller, box):
    stop = threading.Event()
    link = controller_link.Link(credential_for(controller.url), clock_=clock.SystemClock())
    worker = delivery.Deliverer(link=link, outbox_=box, jitter=lambda: 0.0, stop=stop)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for number in range(20):
            box.append(fault(number))
        assert controller.wait_for(lambda: len(controller.stored) == 20)
    finally:
        stop.set()
        box.appended.set()
        thread.join(5)
        link.close()
    assert not thread.is_alive()
