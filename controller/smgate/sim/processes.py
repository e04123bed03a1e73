"""The real programs of the demonstration: controller, agent, CLI, each its own process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx2

START_S: Final = 30.0
STOP_S: Final = 8.0
WAITING: Final = 8
"""The exit code of what another person must accept: `smgate help exit-codes`."""
BIN: Final = Path(sys.executable).parent


class DemoError(RuntimeError):
    """A part of the demonstration did not do what it should; the text has its own words."""


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the controller answers that it is ready.

    Raises:
        DemoError: it ended, or was not ready in time; with the end of its log.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx2.get(f"{url}/readyz", timeout=1.0).status_code == httpx2.codes.OK:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)
    raise DemoError(f"The controller did not become ready:\n{log.read_text()[-2000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process: politely, then not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Cli:
    """Runs the real `smgate` as a person, and shows the command."""

    def __init__(self, *, url: str, state: Path, person: str, shown: bool = True) -> None:
        self.person: Final = person
        self._shown: Final = shown
        self._environ: Final = {
            **os.environ,
            "SMGATE_URL": url,
            "SMGATE_TOKEN_FILE": str(state / f"{person}.token"),
            "NO_COLOR": "1",
            "COLUMNS": "140",
        }

    def run(self, *args: str, fails: bool = False) -> str:
        """Run one command; its standard output.

        Raises:
            DemoError: it failed though it should not, or the other way round.
        """
        done = self._do(*args)
        if (done.returncode != 0) != fails:
            raise DemoError(f"smgate {shlex.join(args)}: {done.returncode}\n{done.stderr}")
        if fails:
            self._show(done.stderr)
        return done.stdout

    def ask(self, *args: str) -> str:
        """Ask for what another person must accept; the change's id.

        Raises:
            DemoError: it came to something else.
        """
        done = self._do(*args)
        asked = re.search(r"Asked as (c[0-9]+)", done.stderr)
        if done.returncode != WAITING or asked is None:
            raise DemoError(f"smgate {shlex.join(args)}: {done.returncode}\n{done.stderr}")
        self._show(asked.string.splitlines()[-1])
        return asked.group(1)

    def _show(self, text: str) -> None:
        if self._shown:
            for line in text.strip().splitlines():
                print(f"      {line}")

    def _do(self, *args: str) -> subprocess.CompletedProcess[str]:
        if self._shown:
            print(f"    {self.person}$ smgate {shlex.join(args)}", flush=True)
        return subprocess.run(  # noqa: S603  our own program
            [str(BIN / "smgate"), *args],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
