"""How a URL of PostgreSQL is understood, and what is asked of each connection."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from smgate.log import database, postgres_engine


def asked(url: str, *, read_only: bool = False) -> dict[str, object]:
    """What the driver is given."""
    opened = database.connect(url, read_only=read_only)
    found: dict[str, object] = {}

    class StopError(Exception):
        pass

    def look(dialect: object, record: object, given: object, named: dict[str, object]) -> None:
        found.update(named)
        raise StopError

    engine = getattr(opened._writer, "_proxied", opened._writer)  # Options of its own, one pool.
    sa.event.remove(engine, "do_connect", postgres_engine._connect_with_timeouts)
    sa.event.listen(engine, "do_connect", look)
    with pytest.raises(StopError), engine.connect():
        pass
    opened.close()
    return found


@pytest.mark.parametrize(
    ("url", "hosts", "ports"),
    [
        ("postgresql://u:p@h1:5432,h2:5433/db", "h1,h2", "5432,5433"),
        ("postgresql://u:p@h1,h2:5433/db", "h1,h2", ",5433"),
        ("postgresql://u:p@/db?host=h1:5432&host=h2:5433", "h1,h2", "5432,5433"),
        ("postgresql://u:p@h1,h2/db", "h1,h2", ","),
    ],
)
def test_several_hosts_are_read_as_postgresql_writes_them(url: str, hosts: str, ports: str) -> None:
    told = asked(url)
    assert (told["host"], told["port"], told["dbname"]) == (hosts, ports, "db")
    assert (told["user"], told["password"]) == ("u", "p")
    assert told["target_session_attrs"] == "read-write"


def test_a_url_of_one_host_is_left_as_it_is() -> None:
    told = asked("postgresql://u:p,q@h/db?application_name=a,b")
    assert (told["host"], told["password"], told["application_name"]) == ("h", "p,q", "a,b")
    assert "target_session_attrs" not in told


def test_who_only_reads_takes_a_standby_too() -> None:
    assert "target_session_attrs" not in asked("postgresql://u@h1,h2/db", read_only=True)


def test_what_the_url_says_is_not_overruled() -> None:
    told = asked(
        "postgresql://u@h1,h2/db?target_session_attrs=any&tcp_user_timeout=1&options=-cx%3D1"
    )
    assert (told["target_session_attrs"], told["tcp_user_timeout"]) == ("any", "1")
    assert str(told["options"]).startswith("-cx=1 -c lock_timeout=2000")


def test_a_server_that_vanished_is_not_waited_for_by_the_systems_defaults() -> None:
    told = asked("postgresql://u@h/db")
    assert (told["tcp_user_timeout"], told["keepalives_idle"]) == (10_000, 5)
