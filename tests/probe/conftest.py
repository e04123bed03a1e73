"""The probe's checks over trees of files, in this process: nothing of FlashInfer is imported."""

import importlib
import socket

import pytest
from tests.probe import cubins

from smgate_agent.probe import artifact, stores

ENV = ("FLASHINFER_CUBIN_DIR", "FLASHINFER_WORKSPACE_BASE", "FLASHINFER_NO_DOWNLOAD")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Makes a FlashInfer that this process would import; one per test."""

    def make(**options):
        made = cubins.Tree(tmp_path, **options)
        monkeypatch.syspath_prepend(made.site)
        monkeypatch.setenv("HOME", str(made.home))
        for name in (*ENV, *artifact.DISQUALIFYING_ENV):
            monkeypatch.delenv(name, raising=False)
        if options.get("store") == "env":
            monkeypatch.setenv("FLASHINFER_CUBIN_DIR", str(made.store))
        importlib.invalidate_caches()
        return made

    return make


@pytest.fixture
def no_network(monkeypatch):
    """A socket is an error."""

    def refuse(*_, **__):
        raise AssertionError("the check went to the network")

    monkeypatch.setattr(socket, "socket", refuse)
    assert stores.package_folder("socket") is None
