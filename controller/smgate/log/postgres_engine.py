"""Owns how PostgreSQL is reached: one of several servers, a pooler in between, and time-outs in force.

A pooler that lends a server for one transaction passes no settings of a session on. So the time-outs
are asked for when a connection begins, and then it is looked whether they are in force: an append
that waited for a lock without end would look like a log that is quiet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
import typing_extensions

from smgate.log import arrays, port

if TYPE_CHECKING:
    import psycopg

CONNECT_TIMEOUT_S: Final = 5
CONNECTIONS_MAX: Final = 16  # One per concurrently working thread; more wait their turn.
TIMEOUTS_MS: Final = {
    "lock_timeout": 2_000,  # How long to wait for the head row.
    "statement_timeout": 5_000,  # No append or page of a read takes this long.
    "idle_in_transaction_session_timeout": 10_000,  # Ends a transaction that its owner forgot.
}
# A server that vanished without a word is noticed after some ten seconds, whether it is being waited
# for or written to. The system's own defaults are two hours and a quarter of one.
_VANISHED: Final = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
BINARY: Final = "smgate_binary"
"""Execution option of a statement whose rows come in PostgreSQL's binary form: half the time to read."""
_REFUSED_OPTIONS: Final = "unsupported startup parameter"  # PgBouncer's words, in every version.
_DURABLE: Final = "synchronous_commit"
_ISOLATION: Final = "default_transaction_isolation"
_LOOK: Final = (
    "SELECT pg_backend_pid(), current_user, current_database(), json_object_agg(name, setting) "
    "FROM pg_settings WHERE name IN ('lock_timeout', 'statement_timeout', "
    "'idle_in_transaction_session_timeout', 'synchronous_commit', 'default_transaction_isolation')"
)
_READ_ONLY_STATE: Final = "25006"
_SEVERAL_HOSTS: Final = re.compile(
    r"^(?P<begin>[^:]+://(?:[^@/]*@)?)(?P<hosts>[^/?@]*,[^/?@]*)(?=[/?]|$)"
)


class NoTimeoutsError(port.LogUnavailableError):
    """The time-outs and other settings that an append relies on are not in force on the server."""

    def __init__(self, settings: list[str]) -> None:
        self._settings: Final = settings
        super().__init__(
            "no_timeouts",
            "what stands between smgate and PostgreSQL, such as PgBouncer, does not pass on the "
            "time-outs and other settings smgate asks for, and the server has others for this user",
        )

    @property
    @typing_extensions.override
    def next_step(self) -> str:
        """What to type on the server."""
        return (
            f"On the server, give: {' '.join(self._settings)} Then RECONNECT in PgBouncer's console "
            "(see ops/postgresql.md)."
        )


def several_hosts(url: str) -> str:
    """A URL with hosts as libpq writes them, `h1:5432,h2:5432`, as SQLAlchemy reads them."""
    found = _SEVERAL_HOSTS.match(url)
    if found is None:
        return url
    rest = url[found.end() :]
    path, _, query = rest.partition("?")
    hosts = [f"host={one}" for one in found["hosts"].split(",")]
    return f"{found['begin']}{path or '/'}?{'&'.join([*hosts, query] if query else hosts)}"


def pooled(url: sa.URL, *, read_only: bool) -> sa.Engine:
    """An engine whose connections have the time-outs in force; each is looked at once, as it begins."""
    asked = [f"-c {name}={value}" for name, value in TIMEOUTS_MS.items()]
    engine = _engine(
        url,
        _arguments(url, " ".join(asked), writes=not read_only),
        pool_size=CONNECTIONS_MAX,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
    )

    def forget_if_read_only(context: sa.engine.ExceptionContext) -> None:
        # The server became a standby, or the name leads to another one by now: ask again which it is.
        if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY_STATE:
            context.is_disconnect = True

    if not read_only:
        sa.event.listen(engine, "handle_error", forget_if_read_only)
    sa.event.listen(engine, "do_connect", _connect_with_timeouts)
    sa.event.listen(engine, "before_cursor_execute", _choose_form)
    return engine


def _choose_form(
    connection: sa.Connection,
    cursor: psycopg.Cursor,
    statement: str,
    parameters: object,
    context: sa.engine.interfaces.ExecutionContext,
    many: bool,  # noqa: FBT001  SQLAlchemy calls it so
) -> None:
    del connection, statement, parameters, many
    if context.execution_options.get(BINARY):
        from psycopg import pq

        cursor.format = pq.Format.BINARY


def single(url: sa.URL) -> sa.Engine:
    """An engine for one connection that sets what it needs in its own transaction."""
    engine = _engine(url, _arguments(url, "", writes=True), poolclass=sa.NullPool)
    sa.event.listen(engine, "do_connect", _connect)
    return engine


def _engine(url: sa.URL, arguments: dict[str, object], **more: Any) -> sa.Engine:  # noqa: ANN401
    bare = url.difference_update_query(["options"])
    return sa.create_engine(bare, connect_args=arguments, hide_parameters=True, **more)


def _arguments(url: sa.URL, options: str, *, writes: bool) -> dict[str, object]:
    given = url.query.get("options", "")
    given = given if isinstance(given, str) else " ".join(given)
    wanted: dict[str, object] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        **_VANISHED,
    }
    if writes and _hosts(url) > 1:
        wanted["target_session_attrs"] = "read-write"
    made = {name: value for name, value in wanted.items() if name not in url.query}
    # `arrays` writes texts in UTF-8, whatever the database is in.
    return made | {"options": f"{given} {options}".strip(), "client_encoding": "utf8"}


def _hosts(url: sa.URL) -> int:
    hosts = url.query.get("host", url.host or "")
    return len(hosts.split(",")) if isinstance(hosts, str) else len(hosts)


def _connect(
    dialect: Any,  # noqa: ANN401  SQLAlchemy's, of the driver
    record: object,
    arguments: list[Any],
    named: dict[str, Any],
) -> psycopg.Connection:
    """A connection; without settings of the session where a pooler refuses them."""
    del record
    try:
        connection: psycopg.Connection = dialect.connect(*arguments, **named)
    except dialect.dbapi.OperationalError as error:
        if _REFUSED_OPTIONS not in str(error):
            raise
        connection = dialect.connect(*arguments, **{**named, "options": ""})
    arrays.teach(connection)
    return connection


def _connect_with_timeouts(
    dialect: Any,  # noqa: ANN401
    record: object,
    arguments: list[Any],
    named: dict[str, Any],
) -> psycopg.Connection:
    connection = _connect(dialect, record, arguments, named)
    try:
        connection.autocommit = True
        row = connection.execute(_LOOK).fetchone()
        assert row is not None, "an aggregate has one row"
        if row[0] != connection.info.backend_pid:
            # Somebody answers in the server's place and may lend another one for each transaction:
            # a statement that was prepared on one is not known to the next, or is another's.
            connection.prepare_threshold = None
            lacking = [*_lacking_timeouts(row[3]), *_unsafe(row[3])]
        else:
            for setting in _unsafe(row[3]):
                connection.execute(f"SET {setting}".encode())
            lacking = _lacking_timeouts(row[3])
        _check_lacking(row[1], row[2], lacking)
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    return connection


def _check_lacking(user: str, database: str, lacking: list[str]) -> None:
    if lacking:
        role = f'ALTER ROLE "{user}" IN DATABASE "{database}" SET'
        raise NoTimeoutsError([f"{role} {one};" for one in lacking])


def _lacking_timeouts(found: dict[str, str]) -> list[str]:
    return [
        f"{name} = {most}"
        for name, most in TIMEOUTS_MS.items()
        if not 0 < int(found.get(name, 0)) <= most
    ]


def _unsafe(found: dict[str, str]) -> list[str]:
    """What has to be said where a server or role was set up otherwise.

    What is acknowledged must be durable. And an append that waited for another reads the head anew:
    where a transaction sees one moment alone, the second of two appends would fail.
    """
    wanted = []
    if found.get(_DURABLE) == "off":  # Any other value waits for this server's disk at least.
        wanted.append(f"{_DURABLE} = on")
    if found.get(_ISOLATION) != "read committed":
        wanted.append(f"{_ISOLATION} = 'read committed'")
    return wanted
