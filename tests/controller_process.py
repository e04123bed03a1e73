"""A real `smgate serve` in a process of its own, on loopback, ended by its id whatever the test does."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

SMGATE = pathlib.Path(sys.executable).parent / "smgate"
START_S = 240.0  # below the time-out of a test; a starved machine takes half a minute


@dataclasses.dataclass
class Controller:
    """One process and where it answers."""

    process: subprocess.Popen[str]
    url: str
    log: pathlib.Path

    def kill(self) -> None:
        """End it as a power cut would: it gets no chance to write anything."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> int:
        """End it as a person would; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextlib.contextmanager
def serving(
    database_url: str, folder: pathlib.Path, *, port: int = 0, **environ: str
) -> Iterator[Controller]:
    """A controller that answers requests; its output goes to a file in `folder`."""
    key = folder / "signing.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_text("22" * 32)
    log = folder / "controller.log"
    with log.open("a") as out:
        process = subprocess.Popen(
            [
                str(SMGATE),
                "serve",
                *("--database", database_url),
                *("--listen", f"127.0.0.1:{port}"),
                *("--signing-key", str(key)),
            ],
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            env={**os.environ, **environ},
        )
    alarm = threading.Timer(START_S, process.kill)
    alarm.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        alarm.cancel()
        assert url.startswith("http://"), f"it did not start:\n{log.read_text()[-3000:]}"
        yield Controller(process=process, url=url, log=log)
    finally:
        alarm.cancel()
        if process.poll() is None:
            process.kill()
            process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def issue_token(database_url: str, *options: str) -> str:
    """A token, made in the database itself as a person makes the first one."""
    command = [str(SMGATE), "token", "issue", *options, "--database", database_url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
