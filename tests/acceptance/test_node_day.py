"""A day of one SM107 node: what the agent sees of it, and whether the log tells it as it was.

Everything that ships runs (`node_loop`). A second node is enrolled for the pool: its self-tests are
told in wire format, since no GPU is here to run them. `node_day.txt` is what `smgate unit history`
says of the day, without times and positions; a change of it is a change of what an operator reads.
"""

import json
import pathlib
import re

import httpx2
import pytest
from tests import cli_fakes
from tests.acceptance import node_loop
from tests.acceptance.node_loop import GATE, RECORDED, YES

TRANSCRIPT = pathlib.Path(__file__).with_name("node_day.txt")
POLICY = "min_gpu_sets: 1\nhang_after_s: 2\nmin_serving_share: 0\n"
PLAN = """\
id: rubin-1
gate: kimi-k3-mxfp4
sm: "10.7"
waves:
  - count: 1
bake_s: 2
"""


STORY = ("memory_fallback_cleared", "granted", "bake_interval", "wave_judged", "grant_ended")
"""What the history of a unit leaves out stands in the log between what it has."""


@pytest.fixture
def loop(tmp_path):
    with node_loop.running(tmp_path, bake_interval_s=1) as made:
        yield made


def recorded(name):
    """A recorded log, before and after the model's weights were loaded."""
    data = (RECORDED / f"logs/{name}.log").read_bytes()
    loading = data.index(b" TP0] Load weight begin.")
    at = data.index(b"\n", data.rindex(b"Load weight begin.", 0, loading + 2000)) + 1
    return data[:at], data[at:]


class Day:
    """What happens to the node, in words of its people."""

    def __init__(self, loop):
        self.loop = loop
        self.asked = 0

    def writes(self, data):
        with self.loop.log.open("ab") as log:
            log.write(data)

    def ends(self):
        """The server's process is gone: nothing listens any more."""
        self.loop.server.route("/health", behaviour="reset")

    def answers(self, name):
        self.loop.server.replay("/server_info", RECORDED / f"server_info/{name}.json")
        self.loop.server.route("/health", b"")

    def serves_requests(self):
        """Another hundred, as SGLang counts them."""
        self.asked += 100
        self.loop.server.route(
            "/metrics",
            b'sglang:num_requests_total{model_name="k3"} %d.0\n'
            b'sglang:generation_tokens_total{model_name="k3"} %d.0\n'
            % (self.asked, self.asked * 200),
        )

    def says(self):
        """Types and words of the unit's history so far."""
        shown = self.loop.smgate("unit", "history", "node-a", "--limit", "1000", "-o", "json")
        return [(row["type"], row["says"]) for row in json.loads(shown)["items"]]

    def comes_up(self, name):
        """A server starts, loads, and answers."""
        before, after = recorded(name)
        starts = sum("k3 is starting" in says for _, says in self.says())
        self.writes(before)
        self.until_said("k3 is starting", times=starts + 1)
        self.answers(name)
        self.writes(after)

    def logged(self, *kinds):
        """The log's events of these types, as `smgate log tail` has them."""
        shown = self.loop.smgate("log", "tail", "--lines", "1000", "-o", "json")
        return [row for row in json.loads(shown)["items"] if row["type"] in kinds]

    def until_said(self, *words, times=1):
        """The history has so many lines with all of these words."""
        self.loop.until(
            " ".join(words),
            lambda: sum(all(word in says for word in words) for _, says in self.says()) >= times,
        )


def enrol_pool_node(loop, folder):
    """Another node, by the API that nodes have; what it says of itself and of a launch's build."""
    join = cli_fakes.Cli(None)(
        *("token", "issue", "--join", "--database", f"sqlite:///{loop.database}")
    ).out
    url = loop.controller.url
    enrolled = httpx2.post(
        f"{url}/v1/agent/enroll",
        headers={"Authorization": f"Bearer {join.split()[-1]}"},
        json={"node": "pool-1", "machine_id": "ab" * 16, "agent_version": "0.1.0"},
    ).raise_for_status()
    credential = enrolled.json()["credential"]

    def tell(outbox, *payloads):
        facts = [
            {"sequence": number, "occurred_at_us": 1, "payload": payload}
            for number, payload in enumerate(payloads, 1)
        ]
        httpx2.post(
            f"{url}/v1/agent/facts",
            headers={"Authorization": f"Bearer {credential}"},
            json={"node": "pool-1", "outbox_id": outbox, "facts": facts},
        ).raise_for_status()

    return tell


def passes_checks(loop, tell):
    """The pool passes both required checks on the build that the node launched."""
    launch = Day(loop).logged("launch_planned")[-1]["data"]
    gpus = [{"uuid": "GPU-pool-1", "sm": "10.7"}]
    check = {
        "type": "check_finished",
        "outcome": "passed",
        "reason": "ok",
        "sm": "10.7",
        "gpu_uuids": ["GPU-pool-1"],
        "build": launch["build"],
        "layout": launch["layout"],
        "probe_version": "1",
        "negative_control": "caught",
    }
    tell(
        "pool-outbox",
        {"type": "node_reported", "agent_version": "0.1.0", "pool": True, "gpus": gpus},
        {**check, "check": "api_boundary"},
        {**check, "check": "moe_mxfp4"},
    )


def told(history):
    """The history as text, without what is another in every run."""
    text = "".join(f"{kind:24} {says}\n" for kind, says in history)
    text = re.sub(r"launch-[0-9a-f]{32}", "L", text)
    text = re.sub(r"kernel key [0-9a-f]{16}", "kernel key K", text)
    return re.sub(r"order [0-9]+", "order N", text)


def in_bf16(day):
    """Left alone, the checkpoint's format is not seen by SGLang: BF16, and it fits."""
    day.loop.launch("--ep-size", "32", options=("--restarter", "hook"))
    before, after = recorded("0.5.23-bf16-ep32")
    day.writes(before)
    day.until_said("BF16", "imminent")
    day.answers("0.5.23-bf16-ep32")
    day.writes(after)
    day.until_said("BF16", "active")


def out_of_memory(day):
    """Restarted over fewer GPUs, it does not fit."""
    day.ends()
    day.until_said("k3 is exited")
    day.loop.launch(options=("--restarter", "hook"))
    before, after = recorded("0.5.23-oom")
    day.writes(before)
    day.until_said("BF16", "imminent", times=2)
    day.writes(after)
    day.until_said("BF16", "crashed")


def steered(day):
    """Its people have the SM steered: the next start gets the safe value, and recovers."""
    day.loop.both("gate", "mode", GATE, "10.7", "enforce", *YES)
    day.until_said("append marlin: no_rollout. ")
    assert day.loop.launch(options=("--restarter", "hook"))[-1] == "marlin"
    day.comes_up("0.5.23-marlin")
    day.until_said("k3 runs packed again, or is gone", times=2)


def rolled_out(day, folder):
    """The build is qualified on the pool; a rollout grants the target; it bakes with traffic."""
    passes_checks(day.loop, enrol_pool_node(day.loop, folder))
    (folder / "plan.yaml").write_text(PLAN)
    day.loop.smgate("rollout", "propose", "-f", str(folder / "plan.yaml"), *YES)
    day.until_said("not_approved")
    assert day.loop.other("rollout", "approve", "rubin-1", "--reason", "looked").code == 0
    day.until_said("wave_not_open")
    assert day.loop.other("rollout", "start", "rubin-1", *YES).code == 0
    day.until_said("append flashinfer_mxfp4: granted")
    day.ends()
    day.until_said("k3 is exited", times=3)
    assert day.loop.launch(options=("--restarter", "hook"))[-1] == "flashinfer_mxfp4"
    day.comes_up("0.5.23-target")
    day.loop.until("baked", lambda: day.serves_requests() or "rubin-1 passed" in str(day.says()))


def hangs(day):
    """It hangs: the port is open and nothing comes. Its grant ends, and it is restarted safe."""
    day.loop.server.route("/health", behaviour="hang")
    day.until_said("k3 is unhealthy")
    day.loop.until("the hook ran", day.loop.restarts.exists)
    day.ends()
    day.until_said("k3 is exited", times=4)
    assert day.loop.launch(options=("--restarter", "hook"))[-1] == "marlin"
    day.comes_up("0.5.23-marlin")
    day.until_said("has ended")


@pytest.mark.timeout(240)
def test_the_log_tells_a_nodes_day_in_its_order(loop, tmp_path):
    day = Day(loop)
    (tmp_path / "policy.yaml").write_text(POLICY)
    loop.both("policy", "publish", "-f", str(tmp_path / "policy.yaml"), *YES)
    in_bf16(day)
    out_of_memory(day)
    steered(day)
    rolled_out(day, tmp_path)
    hangs(day)

    assert told(day.says()) == TRANSCRIPT.read_text()
    assert tuple(dict.fromkeys(row["type"] for row in day.logged(*STORY))) == STORY
    node_loop.no_secret_travelled(loop)
