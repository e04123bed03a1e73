"""A real Prometheus, with the rules that ship."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from tests import ports

ROOT = pathlib.Path(__file__).parents[2]
SHIPPED = ROOT / "ops/prometheus"
RULES = SHIPPED / "smgate.rules.yml"
WAIT_S_MAX = 60


@pytest.fixture(scope="session")
def programs() -> pathlib.Path:
    """The folder of prometheus, promtool and amtool."""
    script = ROOT / "ops/dev/debian.sh"
    done = subprocess.run(
        ["sh", str(script), "prometheus", "--where"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        pytest.fail(done.stderr.strip(), pytrace=False)
    return pathlib.Path(done.stdout.strip())


class Prometheus:
    """A running Prometheus that scrapes and evaluates once a second."""

    def __init__(self, address: str) -> None:
        self._address = address

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Labels of the alerts that fire now, by name."""
        body = _get(f"http://{self._address}/api/v1/alerts")
        found: dict[str, list[dict[str, str]]] = {}
        for alert in body["data"]["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def value(self, query: str) -> float | None:
        """The one value of an instant query, None if it gives none."""
        quoted = urllib.request.quote(query)
        result = _get(f"http://{self._address}/api/v1/query?query={quoted}")["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def wait_for_alert(self, name: str, **labels: str) -> None:
        """Wait until the alert fires with these labels."""
        wait_until(
            lambda: any(labels.items() <= one.items() for one in self.firing().get(name, ())),
            f"{name} fires with {labels}",
        )


StartPrometheus = Callable[[dict[str, str]], Prometheus]


@pytest.fixture
def start_prometheus(programs: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[StartPrometheus]:
    """Starts Prometheus on the shipped configuration, with these addresses for its jobs."""
    with contextlib.ExitStack() as stack:

        def start(jobs: dict[str, str]) -> Prometheus:
            config = yaml.safe_load((SHIPPED / "prometheus.example.yml").read_text())
            config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
            config["rule_files"] = [str(RULES)]
            for job in config["scrape_configs"]:
                job["static_configs"] = [{"targets": [jobs[job["job_name"]]]}]
            del config["alerting"]
            (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
            address = f"127.0.0.1:{ports.free_port()}"
            command = [
                str(programs / "prometheus"),
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/tsdb",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ]
            stack.enter_context(running(command, tmp_path / "prometheus.log", address))
            return Prometheus(address)

        yield start


@contextlib.contextmanager
def running(command: list[str], log: pathlib.Path, address: str) -> Iterator[None]:
    """A server until the end of the block; its log is in the failure if it does not come up."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_until(
            lambda: server.poll() is not None or _answers(f"http://{address}/-/ready"),
            f"{command[0]} is ready",
        )
        assert server.poll() is None, log.read_text(errors="replace")
        yield
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for it, at most `WAIT_S_MAX`."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {WAIT_S_MAX} s in vain until {what}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
