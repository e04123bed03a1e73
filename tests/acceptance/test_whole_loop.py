"""The whole loop with real programs: launch gate, resident agent, controller, CLI, one SM107 node.

The GPU is a driver library that answers for an SM107; SGLang's command is a stand-in that writes
down how it was started; its `/server_info` and logs are recordings of SGLang's own. All else is
what ships. Secrets are planted in argv, config file, `/server_info` and logs.
"""

import json

import httpx2
import pytest
from tests.acceptance import node_loop
from tests.acceptance.node_loop import GATE, YES


@pytest.fixture
def loop(tmp_path):
    with node_loop.running(tmp_path) as made:
        yield made


@pytest.mark.timeout(180)
def test_a_launch_is_read_decided_applied_and_watched_and_no_secret_travels(loop):
    # Observe: the gate reads the launch, the decision is recorded, nothing is appended.
    argv = loop.launch()
    assert "--moe-runner-backend" not in argv
    assert loop.why()["override"]["code"] == "observe"
    observed_at = loop.why()["as_of_position"]

    # Left alone on the target: adopted, counted, alarmed; a person takes it back.
    loop.serves("0.5.23-target")
    loop.until("adopted", lambda: loop.why()["rule"] == "adopted")
    assert loop.why()["exposed"] is True
    loop.both("gate", "mode", GATE, "10.7", "enforce", *YES)
    loop.until("kept", lambda: loop.why()["override"]["code"] == "adopted")
    loop.smgate("unit", "take-back", "node-a", *YES)
    loop.until("taken back", lambda: loop.why()["override"]["value"] == "marlin")

    # The next start gets the safe value from the log, through the agent's socket, signed.
    argv = loop.launch()
    assert argv[-2:] == ["--moe-runner-backend", "marlin"]
    loop.serves("0.5.23-marlin")
    loop.until(
        "seen on marlin",
        lambda: (loop.why()["members"][0]["effective"] or {}).get("runner") == "marlin",
    )
    assert loop.why()["exposed"] is False

    # Given back to SGLang, and seen in BF16: one alarm, here and at the agent.
    loop.both("unit", "release", "node-a", *YES)
    assert "--moe-runner-backend" not in loop.launch()
    loop.serves("0.5.23-bf16-ep32")
    loop.until("in BF16", lambda: loop.why()["memory_fallback"] == ["active"])
    alarms = loop.until(
        "alarm",
        lambda: [
            a
            for a in json.loads(loop.smgate("alarm", "ls", "-o", "json"))["items"]
            if a["cause"] == "memory_fallback"
        ],
    )
    assert [a["units"] for a in alarms] == [[loop.why()["unit"]]]
    controller = httpx2.get(f"{loop.controller.url}/metrics").text
    assert 'smgate_memory_fallback_active_instances{phase="active",sm="10.7"} 1.0' in controller
    agent = httpx2.get(f"http://127.0.0.1:{loop.metrics_port}/metrics").text
    assert 'smgate_agent_memory_fallback_active{instance="k3"' in agent

    # Nothing of this restarts a server by itself.
    assert not loop.restarts.exists()

    # The past answers as it was.
    before = loop.why("--at", str(observed_at))
    assert (before["override"]["code"], before["as_of_position"]) == ("observe", observed_at)
    assert json.loads(loop.smgate("log", "verify", "-o", "json"))["ok"] is True
    node_loop.no_secret_travelled(loop, controller, agent)


@pytest.mark.timeout(180)
def test_a_server_on_the_target_is_restarted_by_its_hook_once_and_comes_back_safe(loop):
    loop.launch(options=("--restarter", "hook"))
    loop.serves("0.5.23-target")
    loop.until("adopted", lambda: loop.why()["rule"] == "adopted")
    loop.both("gate", "mode", GATE, "10.7", "enforce", *YES)
    loop.smgate("unit", "pin", "node-a", "off", *YES)

    # It is the only one that serves: a person must allow that.
    (row,) = loop.until("taken back", loop.drains)
    assert (row["code"], row["restart"], row["owner"]) == (
        "pinned_off",
        "waits: budget",
        "approver",
    )
    assert not loop.restarts.exists()
    policy = loop.node.folder / "policy.yaml"
    policy.write_text("min_serving_share: 0\n")
    loop.both("policy", "publish", "-f", str(policy), *YES)

    # The order goes to the node, signed; its agent runs the hook.
    loop.until("the hook ran", loop.restarts.exists)
    loop.until("told", lambda: loop.drains()[0]["told"])
    argv = loop.launch(options=("--restarter", "hook"))
    assert argv[-2:] == ["--moe-runner-backend", "marlin"]
    loop.serves("0.5.23-marlin")
    (row,) = loop.until("safe", lambda: [row for row in loop.drains() if row["safe"]])
    loop.until("ended", lambda: loop.drains()[0]["restart"] == "none")
    assert loop.restarts.read_text() == "ran\n"
    said = loop.smgate("unit", "history", "node-a")
    assert "the drain hook of order" in said
