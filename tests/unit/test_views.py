"""The read models: equal however they came about, moved by one process at a time."""

from __future__ import annotations

import dataclasses
import pathlib
import random

import msgspec
import pytest
from hypothesis import given, settings, strategies
from tests import controller_bench as cb

from smgate import bootstrap
from smgate.domain import commands
from smgate.log import database, open as log_open
from smgate.service import credentials, fold, handle, service as services
from smgate.views import project, remake, shape
from smgate.wire import base, facts

APPROVERS = [
    credentials.Credential(
        id=name,
        kind="operator",
        subject=name,
        role="approver",
        created_at_us=0,
        expires_at_us=None,
        revoked_at_us=None,
    )
    for name in ("alice", "bob")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("views")


def random_history(service: services.Service, dice: random.Random, steps: int) -> None:
    """Some of everything: launches, servers, checks, faults, commands, and the leader's part."""
    for number in range(steps):
        node = f"n{dice.randrange(6)}"
        sm = "10.0" if node == "n0" else "10.7"
        kind = dice.randrange(8)
        if kind < 3:
            payload = cb.launch(f"l{number}", node=node, sm=sm)
        elif kind == 3:
            payload = cb.reported(gpus=[{"uuid": f"GPU-{node}-0", "sm": sm}], rack=f"r{number}")
        elif kind == 4:
            payload = {
                "type": "instance_changed",
                "instance_id": "i",
                "state": dice.choice(["starting", "serving", "exited"]),
                "gpu_uuids": [f"GPU-{node}-0"],
            }
        elif kind == 5:
            payload = {
                "type": "effective_seen",
                "instance_id": "i",
                "runner": dice.choice(["auto", "marlin", "flashinfer_mxfp4"]),
                "a2a": "none",
                "source": "log",
                "architecture": cb.ARCHITECTURE,
                "mxfp4": True,
            }
        elif kind == 6:
            payload = {
                "type": "check_finished",
                "check": dice.choice(["api_boundary", "moe_mxfp4"]),
                "outcome": dice.choice(["passed", "failed", "skipped"]),
                "reason": "said_so",
                "sm": sm,
                "gpu_uuids": [f"GPU-{node}-0"],
                "build": cb.build(),
                "probe_version": "1",
                "negative_control": "caught",
            }
        else:
            give_some_command(service, dice, number)
            continue
        take(service, node, payload)
        service.leader.step()


def take(service: services.Service, node: str, payload: cb.Json) -> None:
    sequence = service.store.stream_version(f"outbox/o-{node}") + 1
    batch = {
        "node": node,
        "outbox_id": f"o-{node}",
        "facts": [{"sequence": sequence, "occurred_at_us": 1, "payload": payload}],
    }
    who = credentials.Credential(
        id=node,
        kind="node",
        subject=node,
        role=None,
        created_at_us=0,
        expires_at_us=None,
        revoked_at_us=None,
    )
    service.ingest.facts(base.decode(msgspec.json.encode(batch), facts.FactsBatch), by=who)


def give_some_command(service: services.Service, dice: random.Random, number: int) -> None:
    given: commands.Command = dice.choice(
        [
            commands.DeclareFreeze(id=f"f{number % 3}", reason="r"),
            commands.SetGateMode(
                gate=cb.GATE, sm="10.7", mode=dice.choice(["observe", "enforce"]), reason="r"
            ),
            commands.DisableGate(gate=cb.GATE, reason="r"),
            commands.EnableGate(gate=cb.GATE, reason="r"),
        ]
    )
    request = handle.Request(
        name="some", command=given, expected_position=None, idempotency_key=None, dry_run=False
    )
    service.commands.handle(request, by=dice.choice(APPROVERS))


def table(service: services.Service) -> list[tuple[object, ...]]:
    with service.store.database.statement() as connection:
        rows = connection.exec_driver_sql(
            "SELECT view, key, position, data FROM view_row ORDER BY view, key"
        )
        return [tuple(row) for row in rows]


@settings(max_examples=6, deadline=None)
@given(seed=strategies.integers(0, 2**32), every=strategies.integers(1, 12))
def test_views_built_along_the_way_equal_views_built_at_the_end(
    folder: pathlib.Path, seed: int, every: int
) -> None:
    url = f"sqlite:///{folder / f'{seed}-{every}.db'}"
    pathlib.Path(url.removeprefix("sqlite:///")).unlink(missing_ok=True)
    with bootstrap.assembled(cb.settings(url, folder)) as service:
        service.leader.step()
        dice = random.Random(seed)
        for _ in range(6):
            random_history(service, dice, every)
            service.queries.rows("units")  # catches the views up
        along = table(service)
        service.views.drop()
        assert table(service) == []
        service.queries.rows("units")
        assert table(service) == along
        assert len({view for view, *_ in along}) > 3
        again = fold.fleet_at(service.store, service.folder.position)
        assert [row[3] for row in along] == [
            data.decode() for _, (_, data) in sorted(remake.make(again).rows.items())
        ]


@pytest.fixture
def embedded(tmp_path: pathlib.Path) -> services.Service:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with bootstrap.assembled(cb.settings(url, tmp_path)) as made:
        made.leader.step()
        yield made  # type: ignore[misc]


def test_rows_that_are_no_more_are_taken_out(embedded: services.Service) -> None:
    freeze = handle.Request(
        name="f",
        command=commands.DeclareFreeze(id="f1", reason="r"),
        expected_position=None,
        idempotency_key=None,
        dry_run=False,
    )
    lift = handle.Request(
        name="f",
        command=commands.LiftFreeze(id="f1", reason="r"),
        expected_position=None,
        idempotency_key=None,
        dry_run=False,
    )
    embedded.commands.handle(freeze, by=APPROVERS[0])
    assert len(embedded.queries.rows("freezes")["items"]) == 1
    asked = embedded.commands.handle(lift, by=APPROVERS[0])
    assert len(embedded.queries.rows("freezes")["items"]) == 1
    assert asked.waits is not None
    accept = dataclasses.replace(
        lift, command=commands.AcceptChange(change=asked.waits.change, reason="r")
    )
    embedded.commands.handle(accept, by=APPROVERS[1])
    assert embedded.queries.rows("freezes")["items"] == []


def test_a_process_that_is_behind_leaves_the_views_of_one_that_is_ahead(
    embedded: services.Service,
) -> None:
    behind = fold.fleet_at(embedded.store, 1)
    embedded.queries.rows("gates")
    position = embedded.views.position()
    other = project.Views(embedded.store.database)
    other.project(behind)
    assert other.position() == position
    assert len(other.rows("gates")[1]) == 1


def test_a_process_goes_on_from_the_views_of_another(embedded: services.Service) -> None:
    other = project.Views(embedded.store.database)
    with embedded.folder.at_head() as fleet:
        other.project(fleet)
    random_history(embedded, random.Random(1), 10)
    embedded.queries.rows("units")  # by the first process, which never wrote these rows
    with embedded.folder.at_head() as fleet:
        other.project(fleet)
        made = remake.make(fleet).rows
    assert [row[3] for row in table(embedded)] == [
        data.decode() for _, (_, data) in sorted(made.items())
    ]


def as_another_release_wrote_them(embedded: services.Service, version: int) -> None:
    with embedded.store.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE projection SET version = {version}")
        connection.exec_driver_sql(
            f"UPDATE view_row SET data = '{{}}', view = '{version}' || substr(view, 2)"
        )


@pytest.mark.parametrize("version", [project.VERSION - 1, project.VERSION + 1])
def test_rows_of_another_shape_stand_beside_ours_while_a_release_is_replaced(
    embedded: services.Service, version: int
) -> None:
    embedded.queries.rows("units")
    ours = table(embedded)
    as_another_release_wrote_them(embedded, version)
    theirs = table(embedded)
    views = project.Views(embedded.store.database)
    assert views.position() == -1
    assert views.rows("gates") == (-1, [])
    with embedded.folder.at_head() as fleet:
        views.project(fleet)
    assert table(embedded) == sorted(ours + theirs)
    assert views.rows("gates")[1] == embedded.queries.rows("gates")["items"]
    with embedded.store.database.reading() as connection:
        found = connection.exec_driver_sql("SELECT version, position FROM projection").all()
    assert sorted(found) == sorted(
        [(version, views.position()), (project.VERSION, views.position())]
    )


def test_rows_of_releases_before_the_last_are_thrown_away(embedded: services.Service) -> None:
    embedded.queries.rows("units")
    ours = table(embedded)
    as_another_release_wrote_them(embedded, project.VERSION - 2)
    with (
        embedded.store.database.writing() as connection
    ):  # as they were before versions stood there
        connection.exec_driver_sql("INSERT INTO view_row VALUES ('units', 'u', 1, '{}')")
    with embedded.folder.at_head() as fleet:
        project.Views(embedded.store.database).project(fleet)
    assert table(embedded) == ours
    with embedded.store.database.reading() as connection:
        assert len(connection.exec_driver_sql("SELECT version FROM projection").all()) == 1


def test_a_view_that_failed_to_be_written_is_not_half_there(
    embedded: services.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.queries.rows("units")
    before, position = table(embedded), embedded.views.position()
    random_history(embedded, random.Random(2), 8)
    with database.connect(str(embedded.settings.database_url)).writing() as blocker:
        blocker.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON view_row "
            f"WHEN NEW.view = '{project.VERSION}/units' BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
        )
    with pytest.raises(Exception, match="refused by the test"):
        embedded.queries.rows("units")
    assert (table(embedded), embedded.views.position()) == (before, position)


def test_rows_are_plain_json_with_times_in_utc(embedded: services.Service) -> None:
    random_history(embedded, random.Random(3), 12)
    [row] = [r for r in embedded.queries.rows("nodes")["items"] if r["node"] == "n1"]
    assert row["last_fact_at"].endswith("Z")
    assert shape.iso(0) == "1970-01-01T00:00:00.000000Z"
    assert shape.iso(None) is None


def test_the_shipped_migration_makes_the_tables_of_the_views(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'fresh.db'}"
    log_open.upgrade(url)
    opened = database.connect(url)
    assert project.Views(opened).position() == -1
    opened.close()
