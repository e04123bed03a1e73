"""Fixtures that every folder of tests may use. Each family has a module of its own."""

import signal

import hypothesis
import pytest

pytest_plugins = ["tests.fixtures_postgres", "tests.skips", "tests.workers"]

# How fast a machine is proves nothing about an example; pytest-timeout ends one that hangs. A run of
# the suite takes the same examples every time, so that a red one is the change's; `search` takes
# others every time.
for name, same_examples in (("smgate", True), ("search", False)):
    hypothesis.settings.register_profile(
        name,
        deadline=None,
        derandomize=same_examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("smgate")

# A shell starts what it puts into the background with these ignored, and so would every process of a
# test be: those that are to end by them would not.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite."""
    parser.addoption(
        "--update-transcripts",
        action="store_true",
        help="write the transcripts of tests/simulation and the schema of its format anew",
    )
