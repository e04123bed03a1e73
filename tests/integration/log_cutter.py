"""A process that puts the beginning of a log into the archive until it is killed. Run as a script.

Started once, so that the imports are paid once; each line on its standard input (how far to cut) makes
it fork a child that cuts. The child says `begun`, then `done`; the parent says
`pid N` before and `dead STATUS` after.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time

from smgate.log import open as log_open
from smgate.service import cut, refusal


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def child(url: str, folder: pathlib.Path, through: int) -> None:
    store = log_open.open_store(url, clock_us=lambda: time.time_ns() // 1_000)
    say("begun")
    try:
        cut.cut(store, folder, through=through)
    except refusal.RefusedError as error:
        if error.code != "nothing_to_archive":  # The one that was killed had done it all.
            raise
    say("done")


def main(url: str, folder: pathlib.Path) -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                child(url, folder, int(line))
            finally:
                os._exit(3)
        say(f"pid {pid}")
        _, status = os.waitpid(pid, 0)
        say(f"dead {status}")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
