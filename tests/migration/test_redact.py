"""A person has the payload of a fact erased, once nothing stands on it: on a log with a whole story."""

from __future__ import annotations

import json
import pathlib

import pytest
from tests import cli_fakes
from tests.migration import old_log

from smgate.domain import why
from smgate.log import codec, formats, migrate, open as log_open, sql, verify
from smgate.service import fold, histories, leader, redact, refusal

NOW_US = 1_764_481_000_000_000
REFUSED = {
    "launch_planned": "kernel key",
    "check_finished": "kernel key",
    "instance_changed": "alarm no_safe_value",
    "memory_fallback_cleared": "alarm memory_fallback",
}
"""Facts of that story that something stands on, and what."""
GOES = (
    *("drain_hook_ended", "node_reported", "override_applied", "effective_seen", "weights_seen"),
    *("gpu_fault_seen", "bake_interval", "golden_finished", "memory_fallback_seen", "gap_noticed"),
    "directive_held",
)


@pytest.fixture
def store(bare_url: str) -> sql.SqlStore:
    old_log.make(bare_url, "0001")
    log_open.upgrade(bare_url)
    log_open.finalize(bare_url)
    return opened(bare_url)


def opened(url: str) -> sql.SqlStore:
    return log_open.open_sql_store(url, clock_us=lambda: NOW_US)


def give(store: sql.SqlStore, position: int, **more: bool) -> dict[str, object]:
    return redact.redact(store, position, by="anna", reason="a token in it", at_us=NOW_US, **more)


def places(store: sql.SqlStore) -> dict[str, int]:
    return {one.type: one.position for one in store.read(after=0)}


def refused(store: sql.SqlStore, position: int) -> refusal.RefusedError:
    with pytest.raises(refusal.RefusedError) as caught:
        give(store, position)
    assert caught.value.next_step
    return caught.value


def test_only_a_fact_on_which_nothing_stands_is_erased(store: sql.SqlStore) -> None:
    head = store.head()
    for name, position in places(store).items():
        if name in GOES:
            looked = give(store, position, dry_run=True)
            assert looked == {"position": position, "fact": name, "changed": False}
            continue
        error = refused(store, position)
        if name in REFUSED:
            assert (error.code, REFUSED[name] in error.message) == ("still_in_force", True)
        else:
            assert error.code == "not_a_fact", name
    assert refused(store, 999).code == "unknown_position"
    assert store.head() == head, "nothing was written"
    store.close()


def test_what_was_erased_is_gone_and_all_else_is_as_before(store: sql.SqlStore) -> None:
    position = places(store)["bake_interval"]
    payload = store.read(after=position - 1, limit=1)[0].data
    before = fold.fleet_at(store, 83)
    assert give(store, position)["changed"] is True
    left = store.read(after=position - 1, limit=1)[0]
    [order] = store.read(after=83)
    assert (left.data, order.type, order.actor) == (b"", "fact_redacted", "operator:anna")
    assert json.loads(order.data)["reason"] == "a token in it"
    report = verify.verify(store)
    assert (report.ok, report.redacted) == (True, (position,))
    after = fold.fleet_at(store, 84)
    assert {name: unit.override for name, unit in after.units.items()} == {
        name: unit.override for name, unit in before.units.items()
    }
    assert histories.event(left)["data"] is None
    assert why.says(codec.recorded(left).event) == "its payload was erased"
    assert give(store, position)["changed"] is False, "given again it changes nothing"
    assert len(store.read(after=0)) == 84
    url = store.database.url
    store.close()
    if url.drivername == "sqlite":
        folder = pathlib.Path(str(url.database)).parent
        held = [file.name for file in folder.iterdir() if payload in file.read_bytes()]
        assert held == [f"{url.database}.before-{migrate.newest()}".rpartition("/")[2]], (
            "the bytes are in no file any more but in the copy that the upgrade made"
        )


def test_an_erasure_that_was_interrupted_is_finished(store: sql.SqlStore) -> None:
    position = places(store)["weights_seen"]
    record = store.read(after=position - 1, limit=1)[0]
    made = redact._order(store, record, by="anna", reason="r", at_us=NOW_US)
    store.append([made], writer="w")  # And no more: the process was killed here.
    assert verify.verify(store).ok
    assert give(store, position)["changed"] is True
    assert store.read(after=position - 1, limit=1)[0].data == b""
    assert store.head().position == 84
    store.close()


def test_it_is_refused_while_a_controller_leads_and_where_it_was_erased_unasked(
    store: sql.SqlStore,
) -> None:
    position = places(store)["weights_seen"]
    assert store.acquire_lease(leader.LEASE, holder="one", ttl_s=60) is not None
    assert refused(store, position).code == "controller_runs"
    store.release_lease(leader.LEASE, holder="one")
    store.erase(position)
    assert refused(store, position).code == "log_bad"
    store.close()


def test_a_log_the_release_before_may_still_read_is_not_redacted(bare_url: str) -> None:
    old_log.make(bare_url, "0001")
    log_open.upgrade(bare_url)
    store = opened(bare_url)
    position = places(store)["weights_seen"]
    with pytest.raises(formats.NotFinalizedError, match="fact_redacted"):
        give(store, position)
    assert store.read(after=position - 1, limit=1)[0].data != b""
    store.close()


def test_the_command_asks_looks_and_erases(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    old_log.make(url, "0001")
    log_open.upgrade(url)

    def cli(*options: str) -> cli_fakes.Result:
        said = ("--by", "anna", "--reason", "r", "--database", url, "-o", "json")
        return cli_fakes.Cli(None)("log", "redact", "33", *said, *options)

    early = cli("--yes")
    assert (early.code, early.error["code"]) == (5, "not_finalized")
    log_open.finalize(url)
    assert cli().error["code"] == "needs_yes"
    assert json.loads(cli("--dry-run").out)["changed"] is False
    assert json.loads(cli("--yes").out) == {"position": 33, "fact": "weights_seen", "changed": True}
    checked = cli_fakes.Cli(None)("log", "verify", "--database", url, "-o", "json")
    assert json.loads(checked.out)["redacted"] == [33]


@pytest.mark.parametrize(
    ("by", "reason", "code"),
    [
        ("", "why", "bad_name"),
        ("an na", "why", "bad_name"),
        ("a\x01", "why", "bad_name"),
        ("anna", "  ", "reason_needed"),
        ("anna", "x" * 2_001, "too_long"),
        ("anna", "a\x07", "bad_text"),
    ],
)
def test_who_orders_it_and_why_is_said_as_a_controller_would_take_it(
    store: sql.SqlStore, by: str, reason: str, code: str
) -> None:
    head, position = store.head(), places(store)["bake_interval"]
    with pytest.raises(refusal.RefusedError) as caught:
        redact.redact(store, position, by=by, reason=reason, at_us=NOW_US)
    assert (caught.value.code, bool(caught.value.next_step)) == (code, True)
    assert store.head() == head
    store.close()


def test_a_reason_that_is_no_text_is_refused_before_anything_is_done(
    tmp_path: pathlib.Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(url)
    cli = cli_fakes.Cli(None)
    for command in (
        ("log", "redact", "1", "--by", "anna", "--reason", "\udcff", "--yes"),
        ("db", "restore-begin", "--reason", "\udcff"),
    ):
        done = cli(*command, "--database", url)
        assert (done.code, "no text in UTF-8" in done.err) == (2, True)
    done = cli("db", "restore-begin", "--reason", " ", "--database", url)
    assert "reason_needed" in done.err
