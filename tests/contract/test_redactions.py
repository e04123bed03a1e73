"""A payload is erased for good, its record stays, and the log accounts for it: on every store."""

from __future__ import annotations

import hashlib
import json

import pytest
from tests.log_records import record, run

from smgate.domain import redaction
from smgate.log import codec, port, port_snapshots, redactions, verify

ORDER = {"type": redactions.TYPE, "actor": "operator:anna"}


def order(position: int, data: bytes, version: int = 1) -> port.NewRecord:
    said = {"position": position, "digest": hashlib.sha256(data).hexdigest(), "reason": "r"}
    return record(redactions.STREAM, version, json.dumps(said | {"fact": "f"}), **ORDER)


@pytest.fixture
def facts(store: port.Store) -> list[port.StoredRecord]:
    store.append(run("a", 1, 3), writer="w")
    store.append(run("b", 1, 3), writer="w")
    return store.read(after=0)


def bad(store: port.Store) -> tuple[int, str] | None:
    reports = [verify.verify(store), verify.verify(store, stretch=2)]
    assert reports[0] == reports[1]
    found = reports[0].first_bad
    return None if found is None else (found.position, str(found.kind))


def test_an_ordered_erasure_verifies_and_nothing_but_the_payload_is_gone(
    store: port.Store, facts: list[port.StoredRecord]
) -> None:
    store.append([order(2, facts[1].data)], writer="w")
    assert bad(store) is None, "ordered and not done yet"
    head = store.head()
    made = port_snapshots.Snapshot(
        position=7, chain=head.chain, fold_version="1", created_at_us=1, data=facts[1].data
    )
    store.keep_snapshot(made, most=2)
    store.erase(2)
    report = verify.verify(store)
    assert (report.ok, report.redacted, report.positions) == (True, (2,), 7)
    assert store.snapshots() == []
    assert verify.row(report)["redacted"] == [2]
    assert store.read(after=0)[:6] == [facts[0], facts[1]._replace(data=b""), *facts[2:]]
    assert store.head() == head
    assert codec.recorded(store.read(after=1, limit=1)[0]).event == redaction.ERASED


def test_the_node_that_sends_it_again_is_told_that_it_stands(
    store: port.Store, facts: list[port.StoredRecord]
) -> None:
    store.append([order(2, facts[1].data)], writer="w")
    store.erase(2)
    again = store.append(run("a", 1, 3), writer="w")
    assert again.already == (1, 2, 3)
    assert store.read(after=1, limit=1)[0].data == b""
    with pytest.raises(port.ConflictError):
        store.append([record("a", 2, "{}")], writer="w")


def test_an_erasure_that_nobody_ordered_is_named(
    store: port.Store, facts: list[port.StoredRecord]
) -> None:
    store.append([order(2, facts[1].data)], writer="w")
    store.erase(5)
    assert bad(store) == (5, "redacted_without_record")


@pytest.mark.parametrize(
    ("named", "payload", "kind"),
    [
        (2, b"another", "changed"),
        (3, None, "redacted_without_record"),
        (7, None, "redacted_without_record"),  # itself
    ],
)
def test_an_order_accounts_for_the_payload_it_names_and_no_other(
    store: port.Store,
    facts: list[port.StoredRecord],
    named: int,
    payload: bytes | None,
    kind: str,
) -> None:
    store.append([order(named, payload or facts[1].data)], writer="w")
    store.erase(2)
    assert bad(store) == (2, kind)


def test_an_order_that_was_erased_itself_accounts_for_nothing(
    store: port.Store, facts: list[port.StoredRecord]
) -> None:
    store.append([order(2, facts[1].data)], writer="w")
    store.erase(2)
    store.erase(7)
    assert bad(store) == (2, "redacted_without_record")


def test_no_other_record_accounts_for_anything(
    store: port.Store, facts: list[port.StoredRecord]
) -> None:
    said = order(2, facts[1].data)
    store.append(
        [
            record("operators", 1, said.data, **ORDER),
            record(redactions.STREAM, 1, said.data, type="node_reported"),
            record(redactions.STREAM, 2, "no json", **ORDER),
            record(redactions.STREAM, 3, '{"position":2,"digest":"xyz"}', **ORDER),
        ],
        writer="w",
    )
    store.erase(2)
    assert bad(store) == (2, "redacted_without_record")
