"""Rows that are made anew where an event concerned them are all rows, made at once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests import given as language
from tests.simulation import logs

from smgate.domain import events, evolve, facts, rulings
from smgate.domain.state import Fleet
from smgate.domain.values import Gpu
from smgate.scenario import virtual, virtual_people
from smgate.views import remake


class Along:
    """Rows brought along beside rows made at once."""

    def __init__(self) -> None:
        self.fleet, self.remaker = Fleet(), remake.Remaker()
        self.rows: dict[remake.Key, tuple[int, bytes]] = {}

    def take(self, page: Iterable[events.Recorded]) -> dict[remake.Key, tuple[int, bytes]]:
        """Fold a page; returns what was made anew."""
        page = list(page)
        evolve.fold(page, self.fleet)
        made = self.remaker.make(self.fleet)
        kept = {key: row for key, row in self.rows.items() if key[0] not in made.whole}
        self.rows = kept | made.rows
        assert self.rows == remake.make(self.fleet).rows, page[-1]
        return made.rows

    def happens(self, actor: str, event: events.Event) -> dict[remake.Key, tuple[int, bytes]]:
        """Fold one more event."""
        position = self.fleet.position + 1
        recorded = events.Recorded(
            position=position,
            at_us=position,
            occurred_at_us=position,
            stream=actor,
            version=position,
            actor=actor,
            event=event,
        )
        return self.take([recorded])


@pytest.mark.parametrize("scenario", logs.SCENARIOS, ids=lambda path: path.stem)
def test_after_every_event_of_every_scenario(scenario: Path) -> None:
    along = Along()
    for recorded in logs.history(scenario)[0]:
        along.take([recorded])


def test_after_pages_of_any_length() -> None:
    world = virtual_people.play(virtual.Spec(seed=5, nodes=10, days=3))
    found, dice, along = logs.everything(world.core.store), random.Random(5), Along()
    while found:
        count = dice.randint(1, 60)
        page, found = found[:count], found[count:]
        along.take(page)


def test_what_no_event_concerned_is_not_made_again() -> None:
    world = virtual_people.play(virtual.Spec(seed=5, nodes=10, days=1))
    along = Along()
    along.take(logs.everything(world.core.store))
    again = along.happens("node:n1", facts.GapNoticed(lost_outbox_id="o-lost"))
    assert {key for key in again if key[0] == "nodes"} == {("nodes", "n1")}
    assert len([key for key in again if key[0] == "units"]) < len(along.fleet.units)
    assert not {key for key in again if key[0] in ("builds", "expected")}


def gpu(sm: str | None) -> facts.NodeReported:
    return facts.NodeReported(agent_version="1", gpus=(Gpu(uuid="GPU-moved", sm=sm),))


def test_a_gpu_that_another_node_knows_more_of() -> None:
    along = Along()
    along.happens("node:a", gpu("10.3"))
    assert ("nodes", "a") in along.happens("node:b", gpu("10.7"))
    assert ("nodes", "a") in along.happens("node:c", gpu("10.3"))
    assert ("nodes", "a") not in along.happens("node:d", gpu("10.3"))


@pytest.mark.parametrize("known", [0, 3])
def test_a_rank_that_moves_leaves_the_row_of_the_node_it_was_on(known: int) -> None:
    """Whether all rows were made at once since it got there, or it came along."""
    fleet, along = language.Fleet(), Along()
    for rank, node in enumerate("ab"):
        fleet.launch(node, nnodes=2, node_rank=rank, unit_name="pair")
    before = len(fleet.history)
    along.take(fleet.history[: before - known])
    for one in fleet.history[before - known :]:
        along.take([one])
    for rank, node in enumerate("ac"):
        fleet.launch(node, nnodes=2, node_rank=rank, unit_name="pair")
    remade = [along.take([one]) for one in fleet.history[before:]]
    assert ("nodes", "b") in {key for rows in remade for key in rows}


def test_as_many_machines_are_expected_and_others() -> None:
    along = Along()
    for name in ("x", "y"):
        node = rulings.ExpectedNode(name=name, sm="10.7")
        made = along.happens("operator:alice", rulings.FleetExpected(nodes=(node,), reason="r"))
        assert ("expected", name) in made
