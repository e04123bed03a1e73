"""Owns what the exit status of `smgate` means. Scripts rely on it: numbers are only ever added."""

from __future__ import annotations

from typing import Final

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
AUTH: Final = 4
CONFLICT: Final = 5
ENDED_BADLY: Final = 6
UNREACHABLE: Final = 7
WAITING: Final = 8
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

HELP: Final = """\
Exit codes of smgate

  0    done, or already so
  1    refused, or an error that has no code of its own
  2    usage: an unknown option, a missing --reason, a question that nobody could be asked
       (no terminal and no --yes), a file that does not fit
  3    not found: no such unit, node, build, rollout, issue or token
  4    not authenticated, or the role is too low
  5    conflict: the world moved since the position given, or the same person cannot do both
  6    it ended badly: the rollout halted or aborted (only `rollout get --watch`), or the kernel
       key failed (only `build wait`)
  7    the controller cannot be reached, or did not answer in time
  8    asked: nothing is changed until another person accepts it (`smgate change accept`)
  130  interrupted
  141  the reader of the output went away

A command that ended with 7 may have been stored. Repeat it with the --idempotency-key that the
error names: it is then stored once, whatever happened.
"""
