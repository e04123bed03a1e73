"""What a scrape says of snapshots: where the next start begins, and that one could not be kept."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests import controller_bench as cb


def scraped(bench: cb.Bench) -> tuple[str, str]:
    lines = dict(
        line.rsplit(" ", 1)
        for line in bench.http.get("/metrics").text.splitlines()
        if not line.startswith("#")
    )
    return lines["smgate_snapshot_position"], lines["smgate_snapshot_failures_total"]


def test_a_scrape_says_where_the_next_start_begins_and_what_could_not_be_kept(
    embedded: cb.Bench,
) -> None:
    service = embedded.service
    assert scraped(embedded) == ("0.0", "0.0")
    assert service.folder.keep(clock=service.clock, least=1)
    kept = float(service.folder.position)
    assert scraped(embedded) == (str(kept), "0.0")
    embedded.enrol("n1")
    with service.store.database.writing() as connection:
        refuse = "CREATE TRIGGER full BEFORE INSERT ON snapshot BEGIN SELECT RAISE(ABORT, 'x'); END"
        connection.exec_driver_sql(refuse)
    service.folder.catch_up()
    with pytest.raises(sa.exc.DBAPIError):
        service.folder.keep(clock=service.clock, least=1)
    assert scraped(embedded) == (str(kept), "1.0")
    with service.store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE snapshot SET fold_version = 'of another release'")
    assert scraped(embedded) == ("0.0", "1.0")
