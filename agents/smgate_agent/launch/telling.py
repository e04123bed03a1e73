"""The gate's few words on standard error, which never keep it: a pipe nobody reads is left alone."""

from __future__ import annotations

import contextlib
import os
import threading

STDERR = 2
STANDARD_FILES = 3
PATIENCE_S = 0.5


def hold_standard_files() -> None:
    """Put a stand-in where a standard file was closed; it is closed again when the command starts.

    Otherwise the next file or socket the gate opens would have that number, and words or a child's
    output would go there.
    """
    for descriptor in range(STANDARD_FILES):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def say(text: str) -> None:
    """Write one line, if it can be written soon."""
    line = f"smgate-launch: {text}\n".encode("utf-8", "backslashreplace")

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(STDERR, line)

    writer = threading.Thread(target=write, daemon=True)
    with contextlib.suppress(Exception):  # no thread to be had: then no word either
        writer.start()
        writer.join(PATIENCE_S)
