"""Every series that a rule, a runbook or a page names is exported, with the labels it is asked for."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterable

import prometheus_client
import pytest
from prometheus_client import registry as registries
from tests.prometheus import test_shipped_files as shipped
from tests.tidy import checks

from smgate import metric_log, metrics
from smgate.domain import state, take_back
from smgate_agent import metrics as agent_metrics

SERIES = re.compile(r"\bsmgate_[a-z_]+\b(?!\.)")
BY_PROMETHEUS = {"instance", "job"}


def exported() -> dict[str, set[str]]:
    """Name of every series of the controller and the agent -> its labels."""
    fleet = state.Fleet()
    nothing: dict[str, object] = {"str": "0", "bool": False, "int": 0}
    nothing["Mapping[str, take_back.Stages]"] = {"10.7": take_back.Stages()}
    nothing["metric_log.Beside"] = metric_log.Beside(0, 0, 0)
    fields = dataclasses.fields(metrics.Process)
    process = metrics.Process(**{one.name: nothing[str(one.type)] for one in fields})
    requests = prometheus_client.CollectorRegistry()
    metrics.Requests(requests)
    collectors: list[registries.Collector] = [
        metrics.FleetCollector(lambda compute: compute(fleet), lambda: process),
        *requests._collector_to_names,
        *agent_metrics.Metrics(["k3"]).registry._collector_to_names,
    ]
    found = {}
    for family in itertools.chain.from_iterable(one.collect() for one in collectors):
        suffix = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels}
        found[family.name + suffix] = labels | set(getattr(family, "_labelnames", ()))
    for collector in collectors:
        for name in getattr(collector, "_labelnames", ()):
            found[collector._name + ("_total" if collector._type == "counter" else "")].add(name)  # type: ignore[attr-defined]
    return found


def asked_labels(expression: str) -> set[str]:
    """The labels that an expression groups by, joins on, or selects."""
    lists = re.findall(r"\b(?:by|on|without|group_left)\s*\(([^)]*)\)", expression)
    selected = re.findall(r"\{([^}]*)\}", expression)
    named = {name.strip() for names in lists for name in names.split(",")}
    named |= {name for matchers in selected for name in re.findall(r"(\w+)\s*[=!]", matchers)}
    return named - {""}


@pytest.mark.parametrize("rule", shipped.RULES, ids=shipped.NAMES)
def test_a_rule_asks_for_series_and_labels_that_are_exported(rule: dict[str, str]) -> None:
    known = exported()
    names = set(SERIES.findall(rule["expr"]))
    assert names - known.keys() == set()
    labels = set().union(*(known[name] for name in names), BY_PROMETHEUS)
    assert asked_labels(rule["expr"]) - labels == set()


@pytest.mark.parametrize("path", checks.files(".md", ".yml"), ids=str)
def test_a_page_names_series_that_are_exported(path: pathlib.Path) -> None:
    text = (checks.ROOT / path).read_text()
    assert unknown(SERIES.findall(text)) == set()


def unknown(names: Iterable[str]) -> set[str]:
    """Those that nobody exports. The import package of the agent is no series."""
    return set(names) - exported().keys() - {"smgate_agent"}


def test_a_series_and_a_label_that_nobody_exports_are_found() -> None:
    assert unknown(["smgate_units", "smgate_unit_count"]) == {"smgate_unit_count"}
    expression = 'sum by (sm, rack) (smgate_units{unit="u"}) / on (node) smgate_nodes'
    assert asked_labels(expression) == {"sm", "rack", "unit", "node"}
