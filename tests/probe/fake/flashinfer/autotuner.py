"""Remembers whether a tactic was chosen by trial, as the real one does for the process."""

import contextlib

seen = {"tuned": False}


@contextlib.contextmanager
def autotune(tune_mode=True, cache=None):
    seen["tuned"] |= tune_mode
    yield
