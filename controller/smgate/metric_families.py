"""Owns the making of metric families from plain numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

from prometheus_client import core

Metric = core.Metric
Labels = tuple[str, ...]


def snake(name: str) -> str:
    """An event's class as its stored name: no acronym is among them."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def zeros(*labels: Iterable[str]) -> dict[Labels, int]:
    """Every combination at 0."""
    return dict.fromkeys(itertools.product(*labels), 0)


def gauge(name: str, documentation: str, value: float) -> Metric:
    """A gauge without labels."""
    return gauges(name, documentation, (), {(): value})


def gauges(
    name: str,
    documentation: str,
    labels: Labels,
    values: Mapping[Labels, float],
) -> Metric:
    """A gauge with a series per label set."""
    family = core.GaugeMetricFamily(name, documentation, labels=labels)
    for key in sorted(values):
        family.add_metric(key, values[key])
    return family


def counter(
    name: str,
    documentation: str,
    labels: Labels,
    values: Mapping[Labels, float],
) -> Metric:
    """A counter with a series per label set."""
    family = core.CounterMetricFamily(name, documentation, labels=labels)
    for key in sorted(values):
        family.add_metric(key, values[key])
    return family
