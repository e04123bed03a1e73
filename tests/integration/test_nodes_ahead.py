"""A node that holds more than the log has is evidence that the log lost its end."""

from __future__ import annotations

from tests import controller_bench as cb


def ahead(bench: cb.Bench) -> str:
    [line] = [
        line
        for line in bench.http.get("/metrics").text.splitlines()
        if line.startswith("smgate_nodes_ahead_of_log ")
    ]
    return line.rpartition(" ")[2]


def asks(machine: cb.Machine, generation: int, incarnation: str) -> int:
    path = f"/v1/agent/directive?generation={generation}&incarnation={incarnation}&wait=0"
    return machine.bench.http.get(path, headers=machine.headers).status_code


def test_a_node_that_was_told_more_than_the_log_has_is_counted_until_it_was_not(
    embedded: cb.Bench,
) -> None:
    machine = embedded.enrol("n1")
    machine.launch("n1-1")
    embedded.lead()
    told = machine.directive()
    assert told is not None
    held, incarnation = told["generation"], told["incarnation"]
    assert asks(machine, held, incarnation) == 204
    assert ahead(embedded) == "0.0"
    position = embedded.service.store.head().position
    for _ in range(2):
        assert asks(machine, position + 1, incarnation) == 200
        assert ahead(embedded) == "1.0"
    assert asks(machine, position + 1, "another") != 204
    assert ahead(embedded) == "0.0", "that is another log's"
    assert asks(machine, position + 1, incarnation) == 200
    assert asks(machine, held, incarnation) == 204
    assert ahead(embedded) == "0.0"
