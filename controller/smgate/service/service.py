"""Owns the parts of one controller process, joined: what the API calls and what runs beside it."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from smgate import config
from smgate.clock import Clock
from smgate.log import port, sql
from smgate.service import (
    appender,
    contacts,
    credentials,
    directives,
    enrol,
    fold,
    handle,
    ingest,
    leader,
    limiter,
    lost,
    queries,
    signing,
    waiters,
)
from smgate.views import project


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process. Everything but `waiters` may be used from any thread."""

    settings: config.Settings
    store: sql.SqlStore
    clock: Clock
    waiters: waiters.Waiters
    folder: fold.Folder
    appender: appender.Appender
    contacts: contacts.Contacts
    credentials: credentials.Credentials
    directives: directives.Directives
    ingest: ingest.Ingest
    enrolment: enrol.Enrolment
    commands: handle.Commands
    leader: leader.Leader
    views: project.Views
    queries: queries.Queries
    limiter: limiter.Limiter


def build(
    settings: config.Settings,
    *,
    store: sql.SqlStore,
    signer: signing.Signer,
    clock: Clock,
    holder: str,
) -> Service:
    """Join the parts. Starts nothing."""
    waiting = waiters.Waiters()
    folder = fold.Folder(store, on_topics=waiting.wake)
    heard = contacts.Contacts(store.database, clock=clock)
    leading = leader.Leader(
        store,
        folder=folder,
        heard=heard,
        clock=clock,
        holder=holder,
        lease_ttl_s=settings.lease_ttl_s,
        tick_s=settings.tick_s,
    )
    tokens = credentials.Credentials(store.database, clock=clock)
    log = appender.Appender(store, writer=f"api/{holder}", on_stored=leading.wake)
    told = directives.Directives(folder, signer=signer, clock=clock)
    views = project.Views(store.database)
    return Service(
        settings=settings,
        store=store,
        clock=clock,
        waiters=waiting,
        folder=folder,
        appender=log,
        contacts=heard,
        credentials=tokens,
        directives=told,
        ingest=ingest.Ingest(log, store.database),
        enrolment=enrol.Enrolment(
            log, folder=folder, tokens=tokens, heard=heard, told=told, clock=clock
        ),
        commands=handle.Commands(log, folder=folder, clock=clock),
        leader=leading,
        views=views,
        queries=queries.Queries(
            store,
            folder=folder,
            views=views,
            heard=heard,
            clock=clock,
            archive=None if settings.archive_dir is None else pathlib.Path(settings.archive_dir),
        ),
        limiter=limiter.Limiter(
            node=settings.requests_per_minute_node,
            operator=settings.requests_per_minute_operator,
            unknown=settings.requests_per_minute_unknown,
        ),
    )


SNAPSHOT_LOOK_S: Final = 10.0
"""How often it is looked whether a snapshot is due."""
SNAPSHOT_LEAST: Final = 1_000
"""Events that are worth a snapshot when the process ends: fewer are folded in no time."""


class Background:
    """The threads beside the API: leading, tailing the log and writing contacts, keeping snapshots."""

    def __init__(self, service: Service, *, on_error: Callable[[Exception], None]) -> None:
        self._service: Final = service
        self._on_error: Final = on_error
        self._stop: Final = threading.Event()
        self._threads: Final = (
            threading.Thread(target=service.leader.run, name="leader", daemon=True),
            threading.Thread(target=self._tail, name="tail", daemon=True),
            threading.Thread(target=self._keep, name="snapshots", daemon=True),
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End them, and write down who was heard last and, if this one led, what is folded."""
        led = self._service.leader.status.leading
        self._stop.set()
        self._service.leader.stop()
        for thread in self._threads:
            thread.join(timeout_s)
        try:
            self._service.contacts.flush()
            if led and not any(thread.is_alive() for thread in self._threads):
                self._service.folder.keep(clock=self._service.clock, least=SNAPSHOT_LEAST)
        except port.LogUnavailableError as error:
            self._on_error(error)

    def _tail(self) -> None:
        service = self._service
        flushed_us = service.clock.now_us()
        while not self._stop.is_set():
            try:
                service.folder.catch_up()
                now_us = service.clock.now_us()
                if abs(now_us - flushed_us) >= service.settings.contact_flush_s * 1_000_000:
                    flushed_us = now_us
                    service.contacts.flush()
            except lost.LogLostError as error:
                self._go_on_without(error)
            except Exception as error:  # noqa: BLE001  said and counted; the next tick tries again
                self._on_error(error)
            service.clock.wait(self._stop, service.settings.tick_s)

    def _go_on_without(self, error: lost.LogLostError) -> None:
        try:
            lost.begin_anew(self._service.store, error, at_us=self._service.clock.now_us())
        except port.LogError as failed:
            self._on_error(failed)  # Of two processes that notice one is too late.

    def _keep(self) -> None:
        service = self._service
        while not self._stop.is_set():
            try:
                if service.leader.status.leading:
                    service.folder.keep(clock=service.clock)
            except Exception as error:  # noqa: BLE001  as above; a start takes longer without one
                self._on_error(error)
            service.clock.wait(self._stop, SNAPSHOT_LOOK_S)
