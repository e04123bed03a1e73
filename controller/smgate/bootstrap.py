"""Owns the one place that picks adapters and joins them: a controller process from its settings."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import pathlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import typing_extensions
import uvicorn

from smgate import clock as clocks, config, repeats
from smgate.api import app as api
from smgate.log import database, open as log_open
from smgate.service import credentials, service as services, signing

KEEP_ALIVE_S: Final = 75
"""Agents ask every 10 to 30 s; uvicorn's own 5 s would make them connect anew each time."""
GRACE_S: Final = 3
"""Long-polls are woken at once; what still runs after this is cut."""
BACKLOG: Final = 4096

log = logging.getLogger(__name__)


class CannotServeError(Exception):
    """The controller cannot start; the text says why and what to do."""


def serve(settings: config.Settings, *, on_ready: Callable[[str], None] | None = None) -> None:
    """Run one controller process until SIGTERM or SIGINT.

    Args:
        settings: see `config.Settings`.
        on_ready: called with the URL once requests are answered.

    Raises:
        CannotServeError: the database is not ready, the key cannot be used, the port is taken.
        port.LogUnavailableError: the database does not answer.
    """
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(repeats.Repeats())
    for chatty in ("alembic", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with assembled(settings) as service, _listening(settings) as listening:
        app = api.create(service, version=version())
        server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
                server_header=False,
                backlog=BACKLOG,
            ),
            before_stop=service.waiters.close,
            after_start=lambda: _said(listening, on_ready),
        )
        background = services.Background(service, on_error=_failed)
        background.start()
        try:
            server.run(sockets=[listening])
        finally:
            background.stop(timeout_s=settings.lease_ttl_s + GRACE_S)
    log.info("Stopped.")


@contextlib.contextmanager
def assembled(
    settings: config.Settings, *, clock: clocks.Clock | None = None
) -> Iterator[services.Service]:
    """Everything a process is made of, nothing started; closed at the end."""
    clock = clocks.SystemClock() if clock is None else clock
    url = database.normalize(settings.database_url)
    sqlite = url.drivername == "sqlite"
    if sqlite and settings.upgrade_sqlite:
        log_open.upgrade(settings.database_url)
    problems = log_open.check(settings.database_url)
    if problems:
        first = problems[0]
        raise CannotServeError(f"{first.sentence} {first.next_step}")
    store = log_open.open_sql_store(settings.database_url, clock_us=clock.now_us)
    try:
        signer = _signer(
            settings,
            beside=database.sqlite_path(url) if sqlite else None,
            pinned=credentials.Credentials(store.database, clock=clock).pinned(),
        )
        yield services.build(settings, store=store, signer=signer, clock=clock, holder=_holder())
    finally:
        store.close()


def version() -> str:
    """The version of this distribution."""
    return importlib.metadata.version("smgate")


class _Server(uvicorn.Server):
    """uvicorn, with the long-polls woken first, and a clean return instead of dying of the signal."""

    def __init__(
        self,
        settings: uvicorn.Config,
        *,
        before_stop: Callable[[], None],
        after_start: Callable[[], None],
    ) -> None:
        super().__init__(settings)
        self._before_stop: Final = before_stop
        self._after_start: Final = after_start

    @typing_extensions.override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._after_start()

    @contextlib.contextmanager
    @typing_extensions.override
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, frame: Any) -> None:  # noqa: ANN401  a frame, as `signal` has it
            self._before_stop()
            self.handle_exit(number, frame)

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _listening(settings: config.Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((settings.host, settings.port))
        except OSError as error:
            raise CannotServeError(
                f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}. "
                "Give another one by --listen HOST:PORT, or end what listens there."
            ) from error
        yield made
    finally:
        made.close()


def _said(listening: socket.socket, on_ready: Callable[[str], None] | None) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("Serving on %s", url)
    if on_ready is not None:
        on_ready(url)


def _signer(
    settings: config.Settings, *, beside: pathlib.Path | None, pinned: Mapping[str, int]
) -> signing.Signer:
    """The key that the nodes listen to: another one would be refused by each of them, in silence."""
    given = settings.signing_key_file
    if given is None and beside is None:
        raise CannotServeError(
            "With PostgreSQL, give --signing-key FILE: every process of a fleet signs with one key. "
            "Make one with: openssl rand -hex 32 > FILE; chmod 600 FILE"
        )
    path = pathlib.Path(given) if given is not None else pathlib.Path(f"{beside}.key")
    may_create = given is None and (settings.new_signing_key or not pinned)
    nodes = sum(pinned.values())
    put_back = (
        f" {nodes} nodes have pinned a key and refuse what another one signs. Put that key back "
        "from a backup, or start with --new-signing-key and enrol each of them again."
    )
    try:
        signer = signing.load(path, create=may_create)
    except signing.BadKeyError as error:
        new = f" Make one: (umask 077; openssl rand -hex 32 > {path})"
        to_do = put_back if pinned else "" if path.exists() else new
        raise CannotServeError(f"{error}{to_do if error.lost else ''}") from error
    deaf = nodes - pinned.get(signer.public_key, 0)
    if deaf == nodes and pinned and not settings.new_signing_key:
        raise CannotServeError(f"The signing key {path} is not the one of this log.{put_back}")
    if deaf:
        log.warning("%d nodes pinned another key than %s: they must enrol again.", deaf, path)
    return signer


def _holder() -> str:
    """A name for this process: readable, and of no other one."""
    return f"{socket.gethostname()}:{os.getpid()}:{clocks.new_id()[:8]}"


def _failed(error: Exception) -> None:
    log.error("Tailing the log failed; trying again: %s", error)
