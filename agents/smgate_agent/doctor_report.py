"""`smgate-agent doctor`: the command lines to look at, given or running here, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from smgate_agent import doctor, found, scan

API_VERSION: Final = "smgate.agent/v1"

Report = dict[str, Any]


def one(argv: Sequence[str], *, sink: doctor.Sink) -> Report:
    """What is wrong with a command that somebody is about to start."""
    return _report([("command", doctor.examine(argv, sink=sink))], scan.Seen())


def running(state_dir: Path, *, sink: doctor.Sink, proc: Path = scan.PROC) -> Report:
    """What is wrong with the servers that run here."""
    seen = scan.look(proc)
    items = []
    for server in seen.servers:
        try:
            argv = scan.argv(proc, server.pid)
        except OSError:
            continue  # it ended meanwhile
        gated = found.record_of(server, state_dir, proc) is not None
        items.append((f"pid {server.pid}", doctor.examine(argv, sink=sink, gated=gated)))
    return _report(items, seen)


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
