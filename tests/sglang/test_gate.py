"""SGLang's own launch gate, which `tests/launch/gated_sglang.py` imitates: the real module, real ranks.

What makes it dangerous is shown here as well, so that a release which changes it is noticed.
"""

import contextlib
import pathlib
import socket
import subprocess
import sysconfig
import time

import pytest
from tests.launch import several, stand_ins
from tests.sglang import conftest

pytestmark = pytest.mark.sglang

RANK = pathlib.Path(__file__).with_name("gated_rank.py")
STAYS_S = 5
"""Longer than the gate's poll of one second by far."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return stand_ins.build_archive(tmp_path_factory.mktemp("gate"))


@pytest.fixture
def k3(tmp_path):
    folder = tmp_path / "k3"
    folder.mkdir()
    (folder / "config.json").write_text((conftest.FIXTURES / "k3_config.json").read_text())
    return folder


@pytest.fixture
def unit(tmp_path, archive, k3):
    python = conftest.require_env(conftest.BASE_VERSION)
    with contextlib.closing(several.Unit(tmp_path, archive, k3)) as made:
        for node in made.nodes:
            node.command.write_text(f"#!{python}\n{RANK.read_text()}")
            node.environ["OTHER_SITE"] = sysconfig.get_path("purelib")
        yield made


def alone(unit, rank, *more):
    """A rank of SGLang with nothing of smgate in front."""
    node = unit.nodes[rank]
    own = ["--nnodes", "2", "--node-rank", str(rank), "--dist-init-addr", f"127.0.0.1:{unit.port}"]
    with (node.folder / "said").open("a") as said:
        process = subprocess.Popen(
            [node.command, *own, *more], env=node.environ, stdout=said, stderr=said
        )
    started = several.Started(process, node, node.folder / "events")
    unit.started.append(started)
    return started


def stay(started, event):
    """They come so far, and no further."""
    for one in started:
        one.wait_for(event)
    time.sleep(STAYS_S)
    return [one.events()[-1] for one in started]


def test_sglangs_own_gate_opens_for_ranks_that_agree(unit):
    started = unit.all_ranks()
    for one in started:
        one.wait_for("served")
        assert one.events() == ["started", "joined", "activated", "served"]
    until = time.monotonic() + several.PATIENCE_S
    while started[0].outcomes() != ["pairs_agree"]:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_rank_without_the_flag_hangs_all(unit):
    port = str(several.free_port())
    started = [alone(unit, 0, "--gated-launch-port", port), alone(unit, 1)]
    assert stay(started, "joined") == ["joined", "joined"]


def test_a_gate_whose_port_is_taken_never_opens_and_ends_nothing(unit):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        started = [alone(unit, rank, "--gated-launch-port", port) for rank in (0, 1)]
        assert stay(started, "joined") == ["joined", "joined"]
        assert [one.process.poll() for one in started] == [None, None]
