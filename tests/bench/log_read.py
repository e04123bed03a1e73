"""Reading, for the log's bench: replay, fold, views and verification of one log, filled once.

The log is that of a fleet whose servers all restart again and again: what nodes say at a start is
most of any log, and the dearest to decode. The library keeps the same facts as plain values in events
of its own, as many as its way of writing them allows in a reasonable time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import psycopg
from eventsourcing import application, domain, persistence, postgres, projection
from psycopg import sql as psycopg_sql
from tests.bench import fleets, log_places

from smgate.domain import events, evolve, facts as domain_facts, state
from smgate.log import codec, open as log_open, port, sql, verify
from smgate.service import fold
from smgate.views import project

NODES_MAX: Final = 3_000
FACTS_A_NODE: Final = 333
PEER_FACTS_MAX: Final = 100_000
VIEW_FACTS_MAX: Final = 20_000
PEER_VIEW_FACTS_MAX: Final = 2_000
AT_ONCE: Final = 5_000
PEER_AT_ONCE: Final = 100
"""The library pipelines each event of a call on PostgreSQL; see `log_places.DURABLE`."""
PAGE: Final = 1_000
VIEW_FACTS: Final = 500

Work = Callable[[], float]


class Reported(domain.DomainEvent):
    """What the library keeps of a fact."""

    name: str
    fact: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logs:
    """The same facts in both logs."""

    kind: str
    url: str
    store: sql.SqlStore
    facts: int
    library: application.Application[uuid.UUID]
    library_url: str
    library_facts: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One name: the work of each subject, which returns its figure."""

    work: dict[str, Work | None]
    unit: str
    peer: str
    ceiling: str
    facts: int


def history(facts: int) -> Iterator[events.Recorded]:
    """As many events: a settled fleet, then start after start of all its servers."""
    made = fleets.of(max(50, min(NODES_MAX, facts // FACTS_A_NODE)))
    yield from itertools.islice(made.recorded, facts)
    position, versions = len(made.recorded), dict.fromkeys((), 0)
    names = [name for name in made.fleet.nodes if not name.startswith("pool")]
    for number in itertools.count(3):
        for name in names:
            for fact in (
                fleets.launch(name, number),
                *fleets.serves(name, number, "marlin"),
                domain_facts.WeightsSeen(instance_id="k3", weight_bytes=number << 30),
            ):
                position += 1
                if position > facts:
                    return
                versions[name] = versions.get(name, 0) + 1
                yield events.Recorded(
                    position=position,
                    at_us=made.now_us,
                    occurred_at_us=made.now_us,
                    stream=f"again/{name}",
                    version=versions[name],
                    actor=f"node:{name}",
                    event=fact,
                )


@contextlib.contextmanager
def filled(place: log_places.Place, *, facts: int) -> Iterator[Logs]:
    """Both logs with that many facts."""
    url, library_url = place.log(), place.empty()
    store = log_open.open_sql_store(url, clock_us=lambda: time.time_ns() // 1_000)
    library = application.Application[uuid.UUID](env=log_places.library_environment(library_url))
    library_facts = min(facts, PEER_FACTS_MAX)
    found = history(facts)
    for first in range(0, facts, AT_ONCE):
        page = list(itertools.islice(found, AT_ONCE))
        store.append([_new(one) for one in page], writer="bench")
        kept = page[: max(0, library_facts - first)]
        for begin in range(0, len(kept), PEER_AT_ONCE):
            some = kept[begin : begin + PEER_AT_ONCE]
            library.recorder.insert_events([_stored(library, one) for one in some])
    try:
        yield Logs(
            kind=place.kind,
            url=url,
            store=store,
            facts=facts,
            library=library,
            library_url=library_url,
            library_facts=library_facts,
        )
    finally:
        store.close()
        library.close()


def _new(one: events.Recorded) -> port.NewRecord:
    return port.NewRecord(
        stream=one.stream,
        version=one.version,
        type=codec.name_of(one.event),
        schema_version=codec.version_of(one.event),
        occurred_at_us=one.occurred_at_us,
        actor=one.actor,
        data=codec.encode(one.event),
    )


def _stored(
    library: application.Application[uuid.UUID], one: events.Recorded
) -> persistence.StoredEvent:
    return library.mapper.to_stored_event(
        Reported(
            originator_id=uuid.uuid5(uuid.NAMESPACE_OID, one.stream),
            originator_version=one.version,
            timestamp=datetime.datetime.fromtimestamp(one.at_us / 1e6, datetime.UTC),
            name=codec.name_of(one.event),
            fact=msgspec.to_builtins(one.event),
        )
    )


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _rows(logs: Logs, facts: int, look: Callable[[bytes], object] | None = None) -> None:
    """The bare driver reads the rows of our own log."""
    columns = (
        "position, stream, version, type, schema_version, occurred_at_us, recorded_at_us, actor, "
        "counter_actor, data, leaf"
    )
    query = f"SELECT {columns} FROM log_event WHERE position > {{}} ORDER BY position LIMIT {PAGE}"
    connection: sqlite3.Connection | psycopg.Connection[Any]
    if logs.kind == "sqlite":
        connection = log_places.raw_sqlite(logs.url)
        read = connection.execute
        query = query.format("?")
    else:
        connection = psycopg.connect(logs.url, autocommit=True)
        read = connection.cursor(binary=True).execute  # type: ignore[assignment]
        query = query.format("%s")
    after = 0
    while after < facts:
        page = read(query, (after,)).fetchall()
        if look is not None:
            for row in page:
                look(row[9])
        after = page[-1][0]
    connection.close()


def _library_replay(logs: Logs) -> None:
    start = 1
    while page := logs.library.recorder.select_notifications(start=start, limit=PAGE):
        for one in page:
            logs.library.mapper.to_domain_event(one)
        start = page[-1].id + 1


def replay_typed(logs: Logs) -> Line:
    """Facts per second, read and decoded."""
    facts = logs.library_facts

    def ours() -> None:
        after = 0
        while after < facts:
            codec.page(logs.store.read(after=after, limit=PAGE))
            after += PAGE

    return Line(
        work={
            "value": lambda: facts / _seconds(ours),
            "peer": lambda: facts / _seconds(lambda: _library_replay(logs)),
            "ceiling": lambda: facts / _seconds(lambda: _rows(logs, facts)),
        },
        unit="1/s",
        peer="eventsourcing notifications and mapper",
        ceiling="rows by the driver, undecoded",
        facts=facts,
    )


def fold_1m(logs: Logs) -> Line:
    """Seconds to fold the whole log, as a process does at its start."""
    return Line(
        work={
            "value": lambda: _seconds(lambda: fold.Folder(logs.store).catch_up()),
            "peer": lambda: (
                _seconds(lambda: _library_replay(logs)) * logs.facts / logs.library_facts
            ),
            "ceiling": lambda: _seconds(lambda: _rows(logs, logs.facts)),
        },
        unit="s",
        peer="eventsourcing typed replay alone, nothing folded",
        ceiling="rows by the driver, undecoded",
        facts=logs.facts,
    )


def projections_500(logs: Logs) -> Line:
    """Facts per second that the views are brought along by."""
    facts = min(logs.facts, VIEW_FACTS_MAX)
    peer = min(logs.library_facts, PEER_VIEW_FACTS_MAX)

    def ours() -> float:
        views, fleet = project.Views(logs.store.database), state.Fleet()
        views.drop()

        def bring_along() -> None:
            while fleet.position < facts:
                page = logs.store.read(after=fleet.position, limit=VIEW_FACTS)
                evolve.fold(codec.page(page), fleet)
                views.project(fleet)

        return facts / _seconds(bring_along)

    return Line(
        work={
            "value": ours,
            # The library cannot subscribe to SQLite at all.
            "peer": None if logs.kind == "sqlite" else lambda: _library_views(logs, peer),
            "ceiling": lambda: _upserts(logs, facts),
        },
        unit="1/s",
        peer="eventsourcing ProjectionRunner",
        ceiling="upserts by the driver, a row each",
        facts=facts,
    )


class _Counts(postgres.PostgresTrackingRecorder):
    """A row per node, in the transaction of its checkpoint."""

    def __init__(self, datastore: postgres.PostgresDatastore, **given: Any) -> None:
        super().__init__(datastore, **given)
        schema = psycopg_sql.Identifier(datastore.schema)
        self.sql_create_statements.append(
            psycopg_sql.SQL(
                "CREATE TABLE IF NOT EXISTS {0}.counted (name text PRIMARY KEY, n bigint)"
            ).format(schema)
        )
        self._count = psycopg_sql.SQL(
            "INSERT INTO {0}.counted VALUES (%s, 1) "
            "ON CONFLICT (name) DO UPDATE SET n = {0}.counted.n + 1"
        ).format(schema)

    def count(self, tracking: persistence.Tracking, name: str) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(self._count, (name,), prepare=True)


def _library_views(logs: Logs, facts: int) -> float:
    class Counting(projection.Projection[_Counts]):
        name = f"counting{uuid.uuid4().hex[:8]}"

        def process_event(self, event: Any, tracking: persistence.Tracking) -> None:
            self.view.count(tracking, str(event.originator_id))

    def run() -> None:
        with projection.ProjectionRunner(
            application_class=application.Application,
            projection_class=Counting,
            view_class=_Counts,
            env=log_places.library_environment(logs.library_url),
        ) as running:
            running.wait(facts, timeout=120)

    return facts / _seconds(run)


def _upserts(logs: Logs, facts: int) -> float:
    table = "(name text PRIMARY KEY, n bigint)"
    upsert = (
        "INSERT INTO bare_view VALUES ({0}, 1) ON CONFLICT (name) DO UPDATE SET n = bare_view.n + 1"
    )
    names = [(f"node-{number % NODES_MAX}",) for number in range(VIEW_FACTS)]
    if logs.kind == "sqlite":
        connection = log_places.raw_sqlite(logs.url)
        cursor: Any = connection.cursor()
        upsert = upsert.format("?")
    else:
        connection = psycopg.connect(logs.url, autocommit=True)  # type: ignore[assignment]
        cursor = connection.cursor()
        upsert = upsert.format("%s")
    connection.execute(f"CREATE TABLE IF NOT EXISTS bare_view {table}")

    def write() -> None:
        for _ in range(facts // VIEW_FACTS):
            cursor.execute("BEGIN")
            cursor.executemany(upsert, names)
            cursor.execute("COMMIT")

    took = _seconds(write)
    connection.close()
    return facts / took


def verified(logs: Logs) -> Line:
    """Facts per second whose hashes are recomputed."""

    def ours() -> None:
        report = verify.verify(logs.store)
        assert report.ok
        assert report.positions == logs.facts

    return Line(
        work={
            "value": lambda: logs.facts / _seconds(ours),
            "peer": None,
            "ceiling": lambda: (
                logs.facts / _seconds(lambda: _rows(logs, logs.facts, hashlib.sha256))
            ),
        },
        unit="1/s",
        peer="none: the library has no chain",
        ceiling="rows by the driver, each payload hashed",
        facts=logs.facts,
    )


LINES: Final[dict[str, Callable[[Logs], Line]]] = {
    "replay_typed": replay_typed,
    "fold_1m": fold_1m,
    "projections_500": projections_500,
    "verify": verified,
}
NAMES: Final = tuple(LINES)
