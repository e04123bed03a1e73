"""`smgate-agent doctor`: the command lines to look at, given or running here, and how it is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from smgate_agent import doctor, found, gate_folder, scan

API_VERSION: Final = "smgate.agent/v1"

Report = dict[str, Any]


def one(argv: Sequence[str], *, sink: doctor.Sink) -> Report:
    """What is wrong with a command that somebody is about to start."""
    return _report([("command", doctor.examine(argv, sink=sink))], scan.Seen())


def running(state_dir: Path, *, socket: Path, sink: doctor.Sink, proc: Path = scan.PROC) -> Report:
    """What is wrong with the servers that run here."""
    seen = scan.look(proc)
    items = []
    for server in seen.servers:
        try:
            argv = scan.argv(proc, server.pid)
        except OSError:
            continue  # it ended meanwhile
        gated = found.record_of(server, state_dir, proc) is not None
        findings = doctor.examine(argv, sink=sink, gated=gated)
        findings += _access(server.pid, state_dir, socket, proc)
        findings.sort(key=lambda finding: not finding.defeats)
        items.append((f"pid {server.pid}", findings))
    return _report(items, seen)


def _access(pid: int, state_dir: Path, socket: Path, proc: Path) -> Iterator[doctor.Finding]:
    """Whether a gate of this server's user can ask, and use the state folder."""
    user = gate_folder.user_of(pid, proc)
    if user is None:
        return
    group = _group_of(socket if socket.exists() else state_dir)
    if not gate_folder.may_ask(user, socket, state_dir):
        yield doctor.Finding(
            code="gate_cannot_ask",
            defeats=True,
            sentence=f"Its user (uid {user.uid}) may not open the agent's socket {socket}: a launch "
            "gate asks nobody and leaves the launch untouched.",
            next_step=f"usermod -aG {group} ITS-USER, see that the agent runs, and start it again.",
        )
    closed = [str(path) for path in gate_folder.closed_to(user, state_dir)]
    if closed:
        yield doctor.Finding(
            code="state_folder_closed",
            defeats=False,
            sentence=f"Its user (uid {user.uid}) cannot use {closed[0]}"
            + (f" and {len(closed) - 1} more there" if closed[1:] else "")
            + ": a launch gate forgets what it appended, and knows nothing while the agent is away.",
            next_step=f"Let the state folder have mode 0710 and the group {group}, with the user in "
            "it; the agent makes the folders below when it starts, unless another user did.",
        )


def _group_of(path: Path) -> str:
    with contextlib.suppress(OSError, KeyError):
        return path.group()
    return "smgate-agent"


def lines(report: Report) -> Iterator[str]:
    """The same for people."""
    if not report["items"]:
        yield "no server seen among the processes"
    if report["code"] is not None:
        yield f"more may run ({report['code']}): {report['sentence']}"
    for item in report["items"]:
        if not item["findings"]:
            yield f"{item['what']}: an override reaches SGLang"
        for finding in item["findings"]:
            level = "defeats" if finding["defeats"] else "look at"
            yield f"{item['what']}: {level} {finding['code']}: {finding['sentence']}"
            yield f"    {finding['next_step']}"


def defeated(report: Report) -> bool:
    """Whether an override would not reach a server."""
    return any(one["defeats"] for item in report["items"] for one in item["findings"])


def _report(items: Sequence[tuple[str, list[doctor.Finding]]], seen: scan.Seen) -> Report:
    return {
        "apiVersion": API_VERSION,
        "items": [
            {"what": what, "findings": msgspec.to_builtins(findings)} for what, findings in items
        ],
        "code": seen.code,
        "sentence": seen.sentence,
    }
