"""What launch gates of other users have of the state folder, and who of them has it.

On a host the agent and the servers are often different users. Who is in the agent's group may speak
for the node: it opens the socket, and this is for it too. Nobody else gets anything.

| in the state folder (0710: who is in the group passes, and sees no names) | mode | for |
| --- | --- | --- |
| `identity.json`, `directive.json`, `contact.json` | 0644 | verify the directive held while the agent is away |
| `launches` | 1770 | leave word for the agent; nobody takes away what others left |
| `launches/disagreed`, `launches/barriers`, `last_appended`, `models`, `dry_resolved` | 0770 | what a gate remembers |
| `credential.json`, the outbox, all else | 0600 | the agent alone |

The agent makes these folders, before any gate does: what a gate makes is its own user's.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from smgate_agent import files
from smgate_agent.launch import state

FOLDER_MODE: Final = 0o710
_OWN: Final = 0o1770
_SHARED: Final = 0o770
PARTS: Final = {
    state.LAUNCHES: _OWN,
    state.DISAGREED: _SHARED,
    state.BARRIERS: _SHARED,
    state.LAST_APPENDED: _SHARED,
    state.MODELS: _SHARED,
    state.DRY_RESOLVED: _SHARED,
}
_READ, _WRITE, _PASS = 4, 2, 1
_STATUS_BYTES_MAX: Final = 64 << 10


def prepare(state_dir: Path) -> None:
    """Make the gates' folders, or open those that are ours to the group. Tried, never needed."""
    for name, mode in PARTS.items():
        path = state_dir / name
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                os.chown(path, -1, os.getegid(), follow_symlinks=False)
                path.chmod(mode)


@dataclass(frozen=True, kw_only=True)
class User:
    """As whom a process runs."""

    uid: int
    gids: frozenset[int]

    def may(self, path: Path, want: int) -> bool:
        """By owner, group and mode of the path and every folder above it."""
        try:
            above = all(self._may(one.stat(), _PASS) for one in path.resolve().parents)
            return above and self._may(path.stat(), want)
        except OSError:
            return False

    def _may(self, found: os.stat_result, want: int) -> bool:
        if self.uid == 0:
            return True
        if self.uid == found.st_uid:
            return found.st_mode >> 6 & want == want
        return found.st_mode >> (3 if found.st_gid in self.gids else 0) & want == want


def user_of(pid: int, proc: Path) -> User | None:
    """Whose a process is; None if it is in a container, whose folders are others, or cannot be read."""
    try:
        if (proc / "self/ns/mnt").readlink() != (proc / str(pid) / "ns/mnt").readlink():
            return None
        text = files.read_bounded(proc / str(pid) / "status", bytes_max=_STATUS_BYTES_MAX).decode()
        lines = (line.partition(":") for line in text.splitlines())
        fields = {name: value.split() for name, _, value in lines}
        gids = {int(fields["Gid"][1]), *map(int, fields.get("Groups", []))}
        return User(uid=int(fields["Uid"][1]), gids=frozenset(gids))
    except (OSError, UnicodeDecodeError, KeyError, IndexError, ValueError):
        return None


def closed_to(user: User, state_dir: Path) -> Iterator[Path]:
    """What of the folder a gate of this user should be able to use, and is not."""
    identity = state_dir / state.IDENTITY_FILE
    if identity.exists() and not user.may(identity, _READ):
        yield identity
    for name in PARTS:
        if not user.may(state_dir / name, _READ | _WRITE | _PASS):
            yield state_dir / name


def may_ask(user: User, socket: Path, state_dir: Path) -> bool:
    """Whether a gate of this user reaches the agent, or has the node's credential itself."""
    return user.may(socket, _WRITE) or user.may(state_dir / "credential.json", _READ)
