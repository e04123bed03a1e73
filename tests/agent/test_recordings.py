"""The agent before recorded SGLang: bodies and logs are replayed byte for byte.

What is expected here is read off the recordings' own description, not off the agent.
"""

import json
import random
import threading
from pathlib import Path

import pytest
from tests.fixtures import fake_sglang

from smgate.wire import base, facts
from smgate_agent import (
    bake,
    clock,
    config,
    log_frames,
    log_reader,
    metrics,
    model_config,
    nvml,
    outbox,
    server_info,
    units,
    watch,
)

FIXTURES = Path(__file__).parent.parent / "fixtures/sglang"
BODIES = sorted((FIXTURES / "server_info").glob("*.json"))
LOGS = sorted(path for path in (FIXTURES / "logs").glob("*.log") if ".cri." not in path.name)
CRI_LOGS = sorted((FIXTURES / "logs").glob("*.cri.log"))
SECRETS = (b"sk-PLANTED-api-key-0001", b"sk-PLANTED-admin-key-0002", b"PLANTED-tls-password-0003")
K3 = "KimiK3ForConditionalGeneration"


def recorded(name):
    return FIXTURES / "logs" / name


def name(path):
    return path.name


def as_docker(data):
    """As dockerd writes it: a JSON record for every 16 KiB of a line."""
    out = b""
    for line in data.decode().splitlines(keepends=True):
        for at in range(0, len(line), 16384):
            record = {"log": line[at : at + 16384], "stream": "stderr", "time": "2026"}
            out += json.dumps(record).encode() + b"\n"
    return out


def life_of(data, shape="plain"):
    reader = log_reader.LogReader()
    for line in log_frames.Framer(shape).feed(data):
        reader.line(line)
    return reader.life


class Node:
    """A watcher of one instance, driven by hand."""

    def __init__(self, folder, **declared):
        self.folder = folder
        self.log = fake_sglang.FakeLog(folder / "server.log")
        self.box = outbox.Outbox(
            folder / "outbox.db", clock_=clock.SystemClock(), new_id=lambda: "outbox-1"
        )
        instance = config.Instance(id="k3", log=str(self.log.path), **declared)
        self.metrics = metrics.Metrics(["k3"])
        self.watcher = watch.Watcher(
            instance,
            config.AgentConfig(state_dir=str(folder), instance=(instance,)),
            outbox_=self.box,
            metrics_=self.metrics,
            clock_=clock.SystemClock(),
            stop=threading.Event(),
            faults=nvml.FaultLog(clock.SystemClock()),
            wanted=bake.Wanted(),
        )

    def told(self):
        self.watcher.step()
        outbox_id, batch = self.box.pending()
        if batch:
            self.box.acknowledge(outbox_id=outbox_id, through=batch[-1].sequence)
        return [fact.payload for fact in batch]

    def close(self):
        self.watcher._tail.close()
        self.box.close()


@pytest.fixture
def open_node(tmp_path):
    nodes = []

    def make(**declared):
        declared.setdefault("model_config", str(FIXTURES / "k3_config.json"))
        node = Node(tmp_path, **declared)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.close()


EXPECTED = {
    "0.5.17-bf16-ep32.json": ("auto", 32, 183.5),
    "0.5.17-marlin.json": ("marlin", 8, 183.0),
    "0.5.18-marlin.json": ("marlin", 8, 183.0),
    "0.5.18-target.json": ("flashinfer_mxfp4", 8, 183.0),
    **{
        f"0.5.{patch}-{name}.json": (runner, 8, 183.0)
        for patch in (19, 20, 21, 22)
        for name, runner in (("marlin", "marlin"), ("target", "flashinfer_mxfp4"))
    },
    "0.5.23-bf16-ep32.json": ("auto", 32, 183.5),
    "0.5.23-marlin.json": ("marlin", 8, 183.0),
    "0.5.23-target.json": ("flashinfer_mxfp4", 8, 183.0),
}


def test_every_recorded_body_has_an_expectation():
    assert [path.name for path in BODIES] == sorted(EXPECTED)


@pytest.mark.parametrize("path", BODIES, ids=name)
def test_a_recorded_body_is_read(path):
    runner, tp, weight_gib = EXPECTED[path.name]
    info = server_info.parse(path.read_bytes())
    assert (info.args.runner, info.args.a2a, info.args.tp) == (runner, "none", tp)
    assert info.version == path.name.split("-")[0]
    assert info.weight_bytes == weight_gib * units.GIB


OOM = {"died": True, "upcast_ran_out_of_memory": True, "loaded": False, "architecture": None}
LOADED = {"loaded": True, "died": False, "architecture": K3, "weight_bytes": 183 * units.GIB}
LIVES = {
    "0.5.17-bf16-ep32.log": (
        "auto",
        LOADED | {"ready": True, "weight_bytes": 183.5 * units.GIB},
    ),
    "0.5.18-marlin.log": ("marlin", LOADED | {"ready": True}),
    "0.5.18-oom.log": ("auto", OOM),
    "0.5.18-target.log": ("flashinfer_mxfp4", LOADED | {"ready": True}),
    **{
        f"0.5.{patch}-target.log": ("flashinfer_mxfp4", LOADED | {"ready": True})
        for patch in (19, 20, 21, 22)
    },
    "0.5.23-bf16-ep32.log": (
        "auto",
        LOADED | {"ready": True, "weight_bytes": 183.5 * units.GIB},
    ),
    "0.5.23-engine.log": ("flashinfer_mxfp4", LOADED | {"ready": False}),
    "0.5.23-follower-abandoned.log": ("flashinfer_mxfp4", LOADED | {"died": True, "ready": False}),
    "0.5.23-follower.log": ("flashinfer_mxfp4", LOADED | {"ready": True}),
    "0.5.23-marlin.log": ("marlin", LOADED | {"ready": True}),
    "0.5.23-oom.log": ("auto", OOM),
    "0.5.23-target.log": ("flashinfer_mxfp4", LOADED | {"ready": True}),
}


def test_every_recorded_log_has_an_expectation():
    assert [path.name for path in LOGS] == sorted(LIVES)


@pytest.mark.parametrize("path", LOGS, ids=name)
def test_a_recorded_log_is_read(path):
    runner, expected = LIVES[path.name]
    life = life_of(path.read_bytes())
    assert (life.number, life.args.runner, life.args.a2a) == (1, runner, "none")
    assert life.initialised
    assert {field: getattr(life, field) for field in expected} == expected


@pytest.mark.parametrize("path", LOGS, ids=name)
def test_the_same_log_by_docker_says_the_same(path):
    data = path.read_bytes()
    assert life_of(as_docker(data), "docker") == life_of(data)


@pytest.mark.parametrize("path", CRI_LOGS, ids=name)
def test_the_same_log_by_containerd_says_the_same(path):
    plain = path.with_name(path.name.replace(".cri", ""))
    assert life_of(path.read_bytes(), "cri") == life_of(plain.read_bytes())
    if path.name.startswith("0.5.23"):
        assert b" P [2026" in path.read_bytes(), "the recording shows no line in two parts"


def test_the_engine_prints_its_arguments_twice_and_the_resolved_ones_count():
    data = recorded("0.5.23-engine.log").read_bytes()
    assert data.count(b"server_args=") == 2
    first = data[: data.index(b"server_args=", data.index(b"server_args=") + 1)]
    assert life_of(first).args.runner == "auto"
    assert life_of(data).args.runner == "flashinfer_mxfp4"


def test_a_bf16_server_that_fits_is_told_though_its_log_says_nothing(open_node, sglang_server):
    sglang_server.route("/health")
    sglang_server.replay("/server_info", FIXTURES / "server_info/0.5.23-bf16-ep32.json")
    node = open_node(url=sglang_server.url, nnodes=4)
    node.log.write(recorded("0.5.23-bf16-ep32.log").read_bytes())
    told = node.told()
    assert told[0] == facts.InstanceChanged(instance_id="k3", state="serving", nnodes=4)
    assert told[1] == facts.EffectiveSeen(
        instance_id="k3",
        runner="auto",
        a2a="none",
        source="server_info",
        architecture=K3,
        mxfp4=True,
        sglang_version="0.5.23",
    )
    assert told[2].weight_bytes == 183.5 * units.GIB
    assert told[3] == facts.MemoryFallbackSeen(instance_id="k3", phase="active")
    assert node.told() == []


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
@pytest.mark.parametrize("shape", ["plain", "cri", "docker"])
def test_an_upcast_that_runs_out_of_memory_is_told_before_and_after(open_node, version, shape):
    plain = recorded(f"{version}-oom.log").read_bytes()
    data = {
        "plain": plain,
        "cri": recorded(f"{version}-oom.cri.log").read_bytes(),
        "docker": as_docker(plain),
    }[shape]
    node = open_node(url="http://127.0.0.1:9", log_format=shape)
    # The server is still loading: its last line so far is the last "Load weight begin".
    loading = data.index(b"\n", data.rindex(b"Load weight begin")) + 1
    node.log.write(data[:loading])
    told = node.told()
    assert told[0].state == "starting"
    assert (told[1].runner, told[1].source) == ("auto", "log")
    assert told[2] == facts.MemoryFallbackSeen(instance_id="k3", phase="imminent")
    node.log.write(data[loading:])
    told = node.told()
    assert [fact for fact in told if isinstance(fact, facts.MemoryFallbackSeen)] == [
        facts.MemoryFallbackSeen(instance_id="k3", phase="crashed")
    ]
    assert told[0].state == "exited"


@pytest.mark.parametrize(
    "server",
    [
        *("0.5.18-marlin", "0.5.18-target", "0.5.19-target", "0.5.20-target"),
        *("0.5.21-target", "0.5.22-target", "0.5.23-marlin", "0.5.23-target"),
    ],
)
def test_a_packed_server_raises_nothing_at_any_moment(open_node, sglang_server, server):
    sglang_server.route("/health", status=503)
    sglang_server.replay("/server_info", FIXTURES / f"server_info/{server}.json")
    node = open_node(url=sglang_server.url)
    told = []
    for line in recorded(f"{server}.log").read_bytes().splitlines(keepends=True):
        node.log.write(line)
        told += node.told()
    sglang_server.route("/health")
    told += node.told()
    assert not any(isinstance(fact, facts.MemoryFallbackSeen) for fact in told)
    assert [fact.state for fact in told if isinstance(fact, facts.InstanceChanged)] == [
        "starting",
        "serving",
    ]
    assert len(told) <= 20
    assert node.watcher.view.verdict.known


def test_a_follower_is_attested_and_followed_by_its_log_alone(open_node):
    node = open_node(nnodes=2, node_rank=1, unit_name="unit-a")
    node.log.write(recorded("0.5.23-follower.log").read_bytes())
    told = node.told()
    assert (told[0].state, told[0].node_rank, told[0].unit_name) == ("serving", 1, "unit-a")
    assert (told[1].runner, told[1].source) == ("flashinfer_mxfp4", "log")


def test_a_follower_whose_peer_died_has_exited_and_blames_no_upcast(open_node):
    node = open_node(nnodes=2, node_rank=1)
    node.log.write(recorded("0.5.23-follower-abandoned.log").read_bytes())
    told = node.told()
    assert told[0].state == "exited"
    assert not any(isinstance(fact, facts.MemoryFallbackSeen) for fact in told)


def test_an_out_of_memory_without_the_upcast_on_its_stack_is_no_fallback():
    data = recorded("0.5.23-oom.log").read_bytes()
    other = data.replace(b"in upcast_from_mxfp", b"in shuffle_weights")
    assert b"in process_weights_after_loading" in other
    life = life_of(other)
    assert life.died
    assert not life.upcast_ran_out_of_memory


def test_the_weights_of_a_packed_server_are_what_the_config_lets_expect():
    parsed = model_config.parse((FIXTURES / "k3_config.json").read_bytes())
    info = server_info.parse((FIXTURES / "server_info/0.5.23-target.json").read_bytes())
    expected = model_config.expected_packed_bytes(
        parsed, info.args, checkpoint_bytes=1453 * units.GIB
    )
    assert info.weight_bytes < expected < 2 * info.weight_bytes


@pytest.mark.parametrize("path", [*LOGS, *CRI_LOGS], ids=name)
def test_no_planted_secret_reaches_a_fact_a_metric_or_a_file(open_node, sglang_server, path):
    body = FIXTURES / "server_info" / path.name.replace(".cri", "").replace(".log", ".json")
    sglang_server.route("/health", status=200 if body.exists() else 503)
    if body.exists():
        assert all(secret in body.read_bytes() for secret in SECRETS)
        sglang_server.replay("/server_info", body)
    data = path.read_bytes()
    assert any(secret in data for secret in SECRETS)
    shape = "cri" if ".cri." in path.name else "plain"
    node = open_node(url=sglang_server.url, log_format=shape)
    node.log.write(data)
    said = b"".join(base.encode(fact) for fact in node.told())
    assert said
    said += repr(node.watcher.view).encode() + _page(node)
    files = [file for file in node.folder.rglob("*") if file.is_file() and file != node.log.path]
    said += b"".join(file.read_bytes() for file in files)
    for secret in SECRETS:
        assert secret not in said


def _page(node):
    import prometheus_client

    return prometheus_client.generate_latest(node.metrics.registry)


@pytest.mark.parametrize("seed", range(40))
def test_mutated_recordings_raise_nothing_and_let_no_secret_through(seed):
    chance = random.Random(seed)
    body = bytearray(chance.choice(BODIES).read_bytes())
    log = bytearray(chance.choice(LOGS).read_bytes())
    for data in (body, log):
        for _ in range(chance.choice([1, 3, 30, 300])):
            at = chance.randrange(len(data))
            if chance.random() < 0.5:
                data[at] = chance.randrange(256)
            else:
                del data[at : at + chance.randrange(1, 50)]
    kept = repr(life_of(bytes(log) + b"\n"))
    try:
        kept += repr(server_info.parse(bytes(body)))
    except server_info.MalformedBodyError as exc:
        kept += str(exc)
    for secret in SECRETS:
        assert secret.decode() not in kept
