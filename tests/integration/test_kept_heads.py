"""What leaves the database says where its log stood, and the log is verified against it."""

from __future__ import annotations

import dataclasses

import pytest
from tests import controller_bench as cb

from smgate.log import kept, verify


def test_an_alarm_is_logged_with_a_head_that_the_log_leads_through(
    embedded: cb.Bench, caplog: pytest.LogCaptureFixture
) -> None:
    alice = embedded.token("operator", "alice")
    embedded.command(alice, "fleet_expect", nodes=[{"name": "n9", "sm": "10.7"}])
    embedded.lead()
    lines = [one for one in caplog.messages if one.startswith("Alarm expected_without_agent on SM")]
    heads, without = kept.read(lines)
    assert (len(heads), without) == (1, 0)
    store = embedded.service.store
    assert verify.verify(store, kept=heads).ok
    forged = dataclasses.replace(heads[0], chain=bytes(32))
    assert verify.verify(store, kept=[forged]).kind is verify.Kind.REWRITTEN


def test_the_list_of_alarms_says_where_the_log_stood(embedded: cb.Bench) -> None:
    told = embedded.get(embedded.token("viewer"), "alarms")["head"]
    end = embedded.service.store.head()
    assert told == {"position": end.position, "chain": end.chain.hex()}
