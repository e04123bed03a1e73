"""The agent as a process, a real hook, and the worst moments to end."""

import signal
import time
from pathlib import Path

import pytest
from tests.agent.test_resident import Agent
from tests.agent.test_watch import serve

from smgate.wire import directive, facts

RECORDED = Path(__file__).parents[1] / "fixtures" / "sglang" / "server_info"
ON_TARGET = (RECORDED / "0.5.23-target.json").read_bytes()
ON_SAFE = (RECORDED / "0.5.23-marlin.json").read_bytes()


@pytest.fixture
def agent(tmp_path, controller, sglang_server):
    agent = Agent(tmp_path, controller)
    hook = f"echo run >> {tmp_path / 'ran'}; while [ ! -e {tmp_path / 'go'} ]; do sleep 0.05; done"
    agent.configure(
        "directive_wait_s = 1",
        "info_interval_s = 0.1",
        "[[instance]]",
        'id = "k3-0"',
        f'url = "{sglang_server.url}"',
        'launch_id = "launch-1"',
        'restarter = "hook"',
        f'drain_hook = ["/bin/sh", "-c", "{hook}"]',
    )
    agent.enroll()
    yield agent
    (tmp_path / "go").touch()
    agent.stop(signal.SIGKILL)


def order(controller):
    told = directive.UnitOverride(
        unit="k3", form="append", value="marlin", code="pinned_off", sentence="", decided_at=40
    )
    ordered = directive.DrainOrder(
        order=41,
        unit="k3",
        launch_ids=("launch-1",),
        instances={"k3-0": 0},
        deadline_us=(1 << 53) - 1,
    )
    controller.publish(
        directive.Directive(
            incarnation=controller.incarnation,
            generation=41,
            node="node-1",
            issued_at_us=1,
            units=(told,),
            drains=(ordered,),
        )
    )


def runs(agent):
    path = agent.folder / "ran"
    return len(path.read_text().split()) if path.exists() else 0


def eventually(condition):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not condition():
        time.sleep(0.05)
    assert condition()


def outcomes(controller):
    return [(e.order, e.outcome) for e in controller.payloads(facts.DrainHookEnded)]


def confirmed_again(controller):
    """The agent has asked with the order in hand, and been answered, twice more."""

    def asked():
        return sum("generation=41" in request[1] for request in controller.requests)

    before = asked()
    eventually(lambda: asked() >= before + 3)


def test_an_ordered_restart_runs_the_hook_once_and_tells_how_it_ended(
    agent, controller, sglang_server
):
    serve(sglang_server, info=ON_TARGET)
    (agent.folder / "go").touch()
    agent.start()
    order(controller)
    eventually(lambda: outcomes(controller) == [(41, "succeeded")])
    confirmed_again(controller)
    assert runs(agent) == 1


def test_an_agent_killed_between_the_order_and_remembering_it_carries_it_out_once(
    agent, controller, sglang_server
):
    serve(sglang_server, info=ON_SAFE)  # nothing to do, and so nothing to remember, as yet
    agent.start()
    order(controller)
    confirmed_again(controller)
    assert runs(agent) == 0
    agent.stop(signal.SIGKILL)
    serve(sglang_server, info=ON_TARGET)
    (agent.folder / "go").touch()
    agent.start()
    eventually(lambda: outcomes(controller) == [(41, "succeeded")])
    confirmed_again(controller)
    assert runs(agent) == 1


def test_an_agent_killed_while_the_hook_runs_never_runs_it_again_and_owns_up(
    agent, controller, sglang_server
):
    serve(sglang_server, info=ON_TARGET)
    agent.start()
    order(controller)
    eventually(lambda: runs(agent) == 1)
    agent.stop(signal.SIGKILL)
    agent.start()
    eventually(lambda: outcomes(controller) == [(41, "interrupted")])
    confirmed_again(controller)
    assert runs(agent) == 1
