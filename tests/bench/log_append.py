"""Appending, for the log's bench: this log, the library's recorder, and the bare driver."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa
from eventsourcing import application, persistence
from tests.bench import log_places, rates

from smgate.log import commit, open as log_open, port

DATA = b'{"gpus":[' + b'{"ecc":0,"i":0,"ok":true,"temp":41,"uuid":"GPU-0001-0"},' * 7 + b"{}]}"
"""One fact of some 400 bytes; nobody here looks into it."""


class Ours:
    """This log, as an API process appends to it: safe order, repeats and conflicts seen, chained."""

    def __init__(self, url: str, *, tables: bool = True) -> None:
        self._store = log_open.open_store(url, clock_us=lambda: time.time_ns() // 1_000)
        self._together = commit.GroupCommit(self._store, writer="bench")

    def writer(self, facts: int) -> Callable[[], object]:
        stream, version = uuid.uuid4().hex, 0

        def write() -> None:
            nonlocal version
            version += facts
            self._together.append(
                [
                    port.NewRecord(
                        stream=stream,
                        version=each,
                        type="node_reported",
                        schema_version=1,
                        occurred_at_us=each,
                        actor="node:n1",
                        data=DATA,
                    )
                    for each in range(version - facts + 1, version + 1)
                ],
                gapless=True,
            )

        return write

    def close(self) -> None:
        self._store.close()


class Library:
    """The library's application recorder: no repeats, no chain."""

    def __init__(self, url: str, *, tables: bool = True) -> None:
        self._application = application.Application(
            env=log_places.library_environment(url) | {"CREATE_TABLE": "yes" if tables else "no"}
        )

    def writer(self, facts: int) -> Callable[[], object]:
        originator, version, recorder = uuid.uuid4(), 0, self._application.recorder

        def write() -> None:
            nonlocal version
            version += facts
            recorder.insert_events(
                [
                    persistence.StoredEvent(
                        originator_id=originator,
                        originator_version=each,
                        topic="node_reported",
                        state=DATA,
                    )
                    for each in range(version - facts + 1, version + 1)
                ]
            )

        return write

    def close(self) -> None:
        self._application.close()


TABLE = (
    "CREATE TABLE IF NOT EXISTS bare (position {key}, stream text, version bigint, type text, "
    "data {bytes})"
)


class Ceiling:
    """The bare driver: one table without a second index, executemany or COPY, a commit each."""

    def __init__(self, url: str, *, tables: bool = True) -> None:
        self._sqlite = sa.make_url(url).drivername == "sqlite"
        if self._sqlite:
            self._file = log_places.raw_sqlite(url)
            if tables:
                self._file.execute(TABLE.format(key="INTEGER PRIMARY KEY", bytes="blob"))
        else:
            self._server = psycopg.connect(url, autocommit=True)
            if tables:
                self._server.execute(
                    TABLE.format(key="bigserial PRIMARY KEY", bytes="bytea").encode()
                )

    def writer(self, facts: int) -> Callable[[], object]:
        rows = [(uuid.uuid4().hex, each, "node_reported", DATA) for each in range(facts)]

        def write_file() -> None:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "INSERT INTO bare (stream, version, type, data) VALUES (?, ?, ?, ?)", rows
            )
            self._file.execute("COMMIT")

        def write_row() -> None:
            self._server.execute(
                "INSERT INTO bare (stream, version, type, data) VALUES (%s, %s, %s, %s)",
                rows[0],
                prepare=True,
            )

        def write_rows() -> None:
            with (
                self._server.cursor() as cursor,
                cursor.copy(
                    "COPY bare (stream, version, type, data) FROM STDIN (FORMAT BINARY)"
                ) as copy,
            ):
                copy.set_types(["text", "int8", "text", "bytea"])
                for row in rows:
                    copy.write_row(row)

        if self._sqlite:
            return write_file
        return write_row if facts == 1 else write_rows

    def close(self) -> None:
        (self._file if self._sqlite else self._server).close()


SUBJECTS: dict[str, Callable[..., rates.Subject]] = {
    "value": Ours,
    "peer": Library,
    "ceiling": Ceiling,
}


def _process(
    kind: str, url: str, callers: int, facts: int, seconds: float, ready: Any, found: Any
) -> None:
    """One of several; puts its rate, or what went wrong, into `found`."""
    try:
        subject = SUBJECTS[kind](url, tables=False)
        subject.writer(facts)()
        ready.wait(60)
        found.put(rates.rate(subject, callers=callers, facts=facts, seconds=seconds))
        subject.close()
    except BaseException as error:
        ready.abort()
        found.put(repr(error))
        raise


def rate_of_processes(
    kind: str, url: str, *, processes: int, callers: int, facts: int, seconds: float
) -> float:
    """As `rates.rate`, of several processes on one database whose tables are there.

    Raises:
        RuntimeError: one of them failed.
    """
    # They are forks of one process that has imported all and holds no connection.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ready, found = context.Barrier(processes), context.Queue()
    started = [
        context.Process(
            target=_process, args=(kind, url, callers, facts, seconds, ready, found), daemon=True
        )
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    told = [found.get(timeout=120) for _ in started]
    for process in started:
        process.join(30)
    # A barrier that broke only says that another failed before.
    for each in sorted((each for each in told if isinstance(each, str)), key=_is_an_echo):
        raise RuntimeError(each)
    return sum(told)


def _is_an_echo(said: str) -> bool:
    return "BrokenBarrier" in said
