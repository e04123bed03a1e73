"""Fixtures that every folder of tests may use. Each family has a module of its own."""

import pytest

pytest_plugins = ["tests.fixtures_postgres", "tests.skips"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite."""
    parser.addoption(
        "--update-transcripts",
        action="store_true",
        help="write the transcripts of tests/simulation and the schema of its format anew",
    )
