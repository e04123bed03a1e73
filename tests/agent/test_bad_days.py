"""Bad days of the outbox and the link: the clock jumps, a week without a network, a cloned machine,
a controller put back from an older backup, and all of it with the facts counted at the end.
"""

import shutil
import threading

import pytest
from tests import given
from tests.agent import fake_controller
from tests.agent.test_delivery import credential_for, fault, send_all

from smgate.service import ingest, records
from smgate.wire import facts
from smgate_agent import clock, controller_link, delivery, outbox

WEEK_S = 7 * 86400


class Agent:
    """An outbox and what sends it, with a clock that a test sets."""

    def __init__(self, path, controller, at, names):
        self.clock = at
        self.box = outbox.Outbox(path, clock_=at, new_id=lambda: next(names))
        self.link = controller_link.Link(credential_for(controller.url), clock_=at)
        self.sender = delivery.Deliverer(
            link=self.link, outbox_=self.box, jitter=lambda: 0.0, stop=threading.Event()
        )

    def close(self):
        self.link.close()
        self.box.close()


@pytest.fixture
def open_agent(controller):
    names = iter(f"outbox-{number}" for number in range(1, 99))
    opened = []

    def make(path, at=None):
        at = at or clock.ManualClock(now_us=1_800_000_000_000_000)
        opened.append(Agent(path, controller, at, names))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def xids(controller):
    return [one.xid for one in controller.payloads(facts.GpuFaultSeen)]


def test_a_clock_that_jumps_loses_and_reorders_nothing(open_agent, controller, tmp_path):
    agent = open_agent(tmp_path / "o.db")
    agent.box.append(fault(1))
    agent.clock.advance(-10 * 365 * 86400)
    agent.box.append(fault(2))
    send_all(agent.sender)
    agent.clock.advance(20 * 365 * 86400)
    agent.box.append(fault(3))
    send_all(agent.sender)
    assert xids(controller) == [1, 2, 3]
    times = [fact.occurred_at_us for fact in controller.streams["outbox-1"].values()]
    assert times[1] < times[0] < times[2], "each is told with the time that this node had"
    assert agent.box.standing().depth == 0


def test_a_clock_before_1970_makes_facts_all_the_same(open_agent, controller, tmp_path):
    agent = open_agent(tmp_path / "o.db", clock.ManualClock(now_us=-5_000_000))
    assert agent.box.append(fault(1))
    send_all(agent.sender)
    assert xids(controller) == [1]


def test_after_a_week_alone_everything_arrives_once_and_in_order(open_agent, controller, tmp_path):
    agent = open_agent(tmp_path / "o.db")
    agent.box.append(fault(0))
    send_all(agent.sender)
    busy = (503, fake_controller.error("busy"))
    for hour in range(1, 7 * 24 + 1):
        agent.clock.advance(3600)
        agent.box.append(fault(hour))
        controller.script.append(busy)
        assert agent.sender.step() == (True, True)
    agent.clock.advance(60)
    send_all(agent.sender)
    assert xids(controller) == list(range(7 * 24 + 1))
    assert agent.box.standing().dropped == 0


def test_after_a_restore_to_before_all_that_is_kept_what_is_missing_is_said(
    open_agent, controller, tmp_path
):
    agent = open_agent(tmp_path / "o.db")
    agent.box.append(fault(1))
    send_all(agent.sender)
    agent.clock.advance(WEEK_S + 60)
    agent.box.append(fault(2))
    send_all(agent.sender)
    # The controller is put back to before both: what is younger than a week comes again.
    controller.streams.clear()
    agent.box.append(fault(3))
    send_all(agent.sender)
    assert xids(controller) == [2, 3]
    gaps = [one.lost_outbox_id for one in controller.payloads(facts.GapNoticed)]
    assert gaps == ["outbox-1"], "what is missing is said"


def test_a_controller_put_back_by_a_day_gets_that_day_again(open_agent, controller, tmp_path):
    agent = open_agent(tmp_path / "o.db")
    for day in range(3):
        agent.box.append(fault(day))
        send_all(agent.sender)
        agent.clock.advance(86400)
        if day == 0:
            backup = {name: dict(stream) for name, stream in controller.streams.items()}
    controller.streams = backup
    agent.box.append(fault(3))
    send_all(agent.sender)
    assert xids(controller) == [0, 1, 2, 3]
    assert controller.payloads(facts.GapNoticed) == []


def test_two_agents_with_one_identity_and_one_outbox_lose_nothing_and_it_is_seen(
    open_agent, controller, tmp_path
):
    first = open_agent(tmp_path / "o.db")
    first.box.append(fault(1))
    send_all(first.sender)
    first.close()
    # The machine is cloned with its state directory; both go on.
    (tmp_path / "clone").mkdir()
    for path in tmp_path.glob("o.*"):
        shutil.copy(path, tmp_path / "clone" / path.name)
    first = open_agent(tmp_path / "o.db")
    clone = open_agent(tmp_path / "clone" / "o.db")
    first.box.append(fault(10))
    clone.box.append(fault(20))
    send_all(first.sender)
    send_all(clone.sender)
    first.box.append(fault(11))
    clone.box.append(fault(21))
    send_all(first.sender)
    send_all(clone.sender)
    assert sorted(xids(controller)) == [1, 10, 11, 20, 21]
    lost = [one.lost_outbox_id for one in controller.payloads(facts.GapNoticed)]
    assert lost == ["outbox-1"], "the one that came second has an outbox of its own, and says so"
    assert first.box.standing().outbox_id != clone.box.standing().outbox_id
    assert cloned(controller) == {"node-1"}


def test_a_machine_rebuilt_without_its_state_is_no_clone(open_agent, controller, tmp_path):
    for build in range(3):
        agent = open_agent(tmp_path / f"{build}.db")
        for number in range(2):
            agent.box.append(fault(10 * build + number))
            send_all(agent.sender)
        agent.close()
    assert len(controller.arrived) == 6
    assert cloned(controller) == set()


def cloned(controller):
    """The nodes that the controller's fold says are two, of what arrived in this order."""
    fleet = given.Fleet()
    for outbox_id, payload in controller.arrived:
        fact = ingest.to_domain(payload)
        fleet.says(controller.node, fact, outbox=records.outbox_stream(outbox_id))
    return {
        unit
        for episode in fleet.state.episodes.values()
        if episode.cause == "node_cloned"
        for unit in episode.units
    }
