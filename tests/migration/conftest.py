"""Databases that were never migrated."""

from __future__ import annotations

import pathlib

import pytest

ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=ENGINES)
def bare_url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """A database that was never migrated."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'bare.db'}"
    return request.getfixturevalue("bare_postgres_url")
