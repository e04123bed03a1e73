"""How a run in several processes (pytest-xdist, `-n 4`) deals out the tests: a file at a time.

So the fixtures of a module are made once. What takes longest goes first, and the processes end
together. A run in one process knows nothing of this.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import pytest
from xdist import scheduler
from xdist.remote import Producer

import smgate
import smgate_agent

LONGEST = ("tests/sglang/", "tests/launch/test_barrier.py", "tests/acceptance/")
TOGETHER = ("tests/sglang/",)
"""Folders whose tests share a process of SGLang, which takes ten seconds to start."""


class Scheduler(scheduler.LoadScopeScheduling):
    """A file or a folder is what one process takes; the names of the tests stay as they are."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if path.startswith(folder)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    """Used in place of those that `--dist` names."""
    return Scheduler(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first, in every process alike."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load what tests would load as they run: Hypothesis draws constants of the code that is loaded.

    In one process the order of the tests settles what that is. Here it must not depend on who came
    first. What needs torch is never loaded here.
    """
    if not hasattr(session.config, "workerinput"):
        return
    for package in (smgate, smgate_agent):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(found.name)
