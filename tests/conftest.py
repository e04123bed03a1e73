"""Fixtures that every folder of tests may use. Each family has a module of its own."""

pytest_plugins = ["tests.fixtures_postgres", "tests.skips"]
