"""What an operator finds in the log of a node: why it is quiet, and what is wrong, once each."""

import logging
import socket
import time

import pytest
from tests import ports
from tests.agent import fake_controller
from tests.agent.test_resident import Agent

from smgate_agent import controller_link, identity, news, outbox

CREDENTIAL = identity.Credential(
    node="node-1",
    controller_url="http://127.0.0.1:1",
    credential="c",
    public_key="00",
    incarnation="log-1",
)


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO)
    return news.News(logging.getLogger("smgate_agent.test")), caplog


@pytest.fixture
def link(manual_clock):
    return controller_link.Link(CREDENTIAL, clock_=manual_clock)


@pytest.fixture
def agent(tmp_path, controller):
    agent = Agent(tmp_path, controller)
    agent.configure()
    yield agent
    agent.stop(9)


def wait_for_line(agent, text):
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if text in agent.stderr():
            return True
        time.sleep(0.05)
    return False


def test_a_link_that_stays_down_is_said_once_and_said_again_when_it_comes_back(told, link):
    says, caplog = told
    for _ in range(3):
        link.failed("controller_refused", reachable=False)
        says.links({"facts": link})
    link.reached()
    says.links({"facts": link})
    first, second = caplog.messages
    assert "does not answer for facts (controller_refused)" in first
    assert second == "The controller answers for facts."


def test_a_link_that_was_not_tried_yet_says_nothing(told, link):
    says, caplog = told
    says.links({"facts": link})
    assert caplog.messages == []


@pytest.mark.parametrize("code", ["token_revoked", "token_unknown", "wrong_kind_of_token"])
def test_a_refused_credential_says_to_enrol_again(told, link, code):
    says, caplog = told
    link.failed(code, reachable=True)
    says.links({"facts": link})
    assert "smgate-agent enroll" in caplog.text
    assert caplog.records[-1].levelno == logging.ERROR


def test_facts_that_are_refused_for_an_unknown_reason_are_said_to_be_kept(told, link):
    says, caplog = told
    for _ in range(3):
        link.failed("of_a_later_release", reachable=True, refused=True)
        says.links({"facts": link})
    (said,) = caplog.messages
    assert "refuses facts (of_a_later_release)" in said
    assert "They are kept" in said
    assert caplog.records[-1].levelno == logging.ERROR


def test_a_full_state_directory_is_not_blamed_on_the_controller(told, link):
    says, caplog = told
    link.failed("state_dir_unwritable", reachable=True)
    says.links({"directive": link})
    assert "the state directory cannot be written" in caplog.messages[-1]


def test_what_is_over_is_news_when_it_begins_again(told):
    says, caplog = told
    says.say("status file", "no room")
    says.say("status file", "no room")
    says.forget("status file")
    says.say("status file", "no room")
    assert caplog.messages == ["no room"] * 2


def test_an_outbox_that_cannot_be_written_is_said(told, tmp_path, open_outbox):
    says, caplog = told
    path = tmp_path / "outbox.db"
    says.outbox(open_outbox().standing(), path)
    assert caplog.records[-1].levelno == logging.INFO
    unusable = outbox.Standing(
        outbox_id="unknown",
        depth=0,
        next_sequence=1,
        acknowledged_through=0,
        last_acknowledged_at_us=None,
        dropped=2,
        gap_open=True,
    )
    says.outbox(unusable, path)
    assert "cannot be used" in caplog.messages[-2]
    assert caplog.messages[-1].startswith("Facts found no room")


def test_an_agent_that_is_not_enrolled_says_so_and_then_who_it_is(agent):
    agent.start()
    assert wait_for_line(agent, "Not enrolled:"), agent.stderr()
    assert "credential.json is not there" in agent.stderr()
    agent.enroll()
    assert wait_for_line(agent, f"This is node node-1 of {agent.controller.url}."), agent.stderr()


def test_a_credential_file_that_cannot_be_read_is_told_from_none(agent):
    agent.state_dir.mkdir()
    (agent.state_dir / "credential.json").write_text("{garbage")
    agent.start()
    assert wait_for_line(agent, "credential.json cannot be used"), agent.stderr()


def test_a_revoked_credential_is_said_by_the_running_agent(agent, controller):
    agent.enroll()
    controller.script = [(401, fake_controller.error("token_revoked"))] * 50
    agent.start()
    assert wait_for_line(agent, "refuses this node's credential (facts: token_revoked)"), (
        agent.stderr()
    )


def test_a_taken_metrics_port_costs_the_metrics_and_nothing_else(agent, controller):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        agent.port = other.getsockname()[1]
        agent.configure()
        agent.enroll()
        agent.start()
        assert wait_for_line(agent, "No metrics at"), agent.stderr()
        assert controller.wait_for(lambda: controller.stored), agent.stderr()
    assert agent.process.poll() is None
    assert "Traceback" not in agent.stderr()


def test_metrics_are_served_at_the_address_of_the_settings_alone(agent):
    agent.configure('metrics_host = "127.0.0.2"')
    agent.start()
    assert wait_for_line(agent, f"Metrics at http://127.0.0.2:{agent.port}/metrics.")
    assert "smgate_agent_enrolled 0.0" in agent.metrics("127.0.0.2")
    with pytest.raises(ConnectionRefusedError):
        agent.metrics()


def test_a_free_metrics_port_is_named(agent):
    agent.port = ports.free_port()
    agent.configure()
    agent.start()
    assert wait_for_line(agent, f"Metrics at http://127.0.0.1:{agent.port}/metrics."), (
        agent.stderr()
    )


def test_a_damaged_outbox_is_said(agent):
    agent.state_dir.mkdir()
    (agent.state_dir / "outbox.db").write_bytes(b"no database" * 500)
    agent.start()
    assert wait_for_line(agent, "is damaged"), agent.stderr()
    assert list(agent.state_dir.glob("outbox.db.damaged-*"))
