"""A fallback on a simulated node fires in a real Prometheus, through a real controller process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from tests.prometheus import conftest

from smgate.sim import node

pytestmark = pytest.mark.prometheus

SMGATE = pathlib.Path(sys.executable).parent / "smgate"
NOBODY = "127.0.0.1:9"


@pytest.fixture
def database(tmp_path: pathlib.Path) -> str:
    """Where the controller keeps its log."""
    return f"sqlite:///{tmp_path}/smgate.db"


@pytest.fixture
def controller(database: str, tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of a running `smgate serve`."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SMGATE_")
    }
    log = tmp_path / "controller.log"
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [str(SMGATE), "serve", "--database", database, "--listen", "127.0.0.1:0"],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), log.read_text()
        yield url
    finally:
        server.terminate()
        server.communicate(timeout=30)


def issue_join_token(database: str) -> str:
    """A token that nodes enrol with, written into the database itself."""
    done = subprocess.run(
        [str(SMGATE), "token", "issue", "--join", "--name", "rack-1", "--database", database],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def a_node(url: str, database: str) -> node.Node:
    """An enrolled SM107 node whose SGLang leaves `auto` unresolved."""
    build = node.build("0.6.18", sglang="0.5.18")
    made = node.Node(
        node.Spec(name="rubin-1", sm="10.7", rack="r1", build=build, unit_name="k3-prod"), url=url
    )
    made.enroll(issue_join_token(database))
    made.report()
    return made


def test_a_fallback_on_a_node_fires_by_the_event_and_by_the_state(
    controller: str, database: str, start_prometheus: conftest.StartPrometheus
) -> None:
    prometheus = start_prometheus(
        {"smgate-controller": controller.removeprefix("http://"), "smgate-agent": NOBODY}
    )
    conftest.wait_until(
        lambda: prometheus.value('smgate_memory_fallbacks_total{sm="10.7",phase="active"}') == 0,
        "the series is there at 0 before anything happened",
    )
    assert prometheus.value("max(smgate_leader)") == 1

    with contextlib.closing(a_node(controller, database)) as simulated:
        # In observe mode nothing is appended: SGLang 0.5.18 upcasts, and it fits.
        runner = simulated.start_server(simulated.launch(), fits=True)
        assert runner == "auto"

        fired = {"sm": "10.7", "phase": "active"}
        prometheus.wait_for_alert("SmgateMemoryFallback", **fired)
        prometheus.wait_for_alert("SmgateMemoryFallbackActive", **fired)
        assert prometheus.value("max(smgate_memory_fallback_excess_bytes)") == 464 << 30

        simulated.stop_server()
        conftest.wait_until(
            lambda: "SmgateMemoryFallbackActive" not in prometheus.firing(),
            "the state ends with the server",
        )
        # The event is told for as long as its window, whatever became of the server.
        assert "SmgateMemoryFallback" in prometheus.firing()


def test_promtool_finds_nothing_to_say_about_the_controllers_series(
    controller: str, database: str, programs: pathlib.Path
) -> None:
    with contextlib.closing(a_node(controller, database)) as simulated:
        simulated.start_server(simulated.launch())
        with urllib.request.urlopen(f"{controller}/metrics", timeout=30) as answer:
            text = answer.read()
    assert b'smgate_units{effective="' in text
    done = subprocess.run(
        [str(programs / "promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
