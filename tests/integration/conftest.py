"""A controller on each kind of database."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from tests import controller_bench

KINDS = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """An empty database of each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def bench(database_url: str, tmp_path: pathlib.Path) -> Iterator[controller_bench.Bench]:
    """A controller that leads."""
    with controller_bench.running(controller_bench.settings(database_url, tmp_path)) as made:
        yield made


@pytest.fixture
def embedded(tmp_path: pathlib.Path) -> Iterator[controller_bench.Bench]:
    """A controller that leads, on SQLite alone: for what no database has a part in."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with controller_bench.running(controller_bench.settings(url, tmp_path)) as made:
        yield made
