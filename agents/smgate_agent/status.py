"""`smgate-agent status`: what this node's agent knows, read from its files, running or not.

It shows the node's own view, never the controller's. What cannot be read is said to be unknown.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from smgate.wire import base, directive
from smgate_agent import clock, directive_poll, files, identity, nvml, resident, status_file

API_VERSION: Final = "smgate.agent/v1"
_SECOND_US: Final = 1_000_000


def gather(state_dir: Path, *, clock_: clock.Clock, gpus: nvml.Inventory) -> dict[str, Any]:
    """Everything the status says, as plain JSON values."""
    credential = identity.load(state_dir)
    written_at_us, seen = _status_file(state_dir)
    return {
        "apiVersion": API_VERSION,
        "read_at_us": clock_.now_us(),
        "running": _running(state_dir),
        "enrolled": credential is not None,
        "node": credential.node if credential is not None else None,
        "controller_url": credential.controller_url if credential is not None else None,
        "gpus": msgspec.to_builtins(gpus.gpus),
        "gpus_reason": gpus.reason,
        "outbox": _outbox(state_dir / resident.OUTBOX_FILE),
        "directive": _directive(state_dir),
        "links": seen.get("links", {}),
        "instances": seen.get("instances", {}),
        "instances_seen_at_us": written_at_us,
        "scan": seen.get("scan"),
    }


def lines(status: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    now_us = status["read_at_us"]
    yield f"agent       {'running' if status['running'] else 'not running'}"
    if status["enrolled"]:
        yield f"enrolled    as {status['node']} at {status['controller_url']}"
    else:
        yield "enrolled    no: run `smgate-agent enroll`"
    for name, link in sorted(status["links"].items()):
        said = "answers" if link["reachable"] else "does not answer"
        if link.get("refused"):
            said = "refuses what is sent, which is kept and sent again,"
        code = f" ({link['code']})" if link["code"] else ""
        yield f"controller  {said} for {name}{code}"
    if not status["gpus"]:
        yield f"gpus        none: {status['gpus_reason']}"
    for gpu in status["gpus"]:
        sm = f"SM {gpu['sm']}" if gpu["sm"] else "SM unknown"
        yield f"gpu         {gpu['uuid']}  {sm}  {gpu['name']}"
    yield from _outbox_lines(status["outbox"], now_us)
    held = status["directive"]
    if held is None:
        yield "directive   none held"
    else:
        yield f"directive   generation {held['generation']}, {held['units']} units, log {held['incarnation']}"
    yield from _instance_lines(status, now_us)
    scan = status["scan"]
    if scan is not None:
        late = f", {scan['not_told']} not told: GPUs not known" if scan["not_told"] else ""
        blind = f"; more may run ({scan['code']}): {scan['sentence']}" if scan["code"] else ""
        yield f"processes   {scan['servers']} servers found{late}{blind}"


def _outbox_lines(outbox: dict[str, Any] | None, now_us: int) -> Iterator[str]:
    if outbox is None:
        yield "outbox      unreadable, or none yet"
        return
    last = outbox["last_acknowledged_at_us"]
    ago = "never acknowledged" if last is None else f"last acknowledged {_ago(now_us, last)}"
    gap = ", a gap is open" if outbox["gap_open"] else ""
    yield f"outbox      {outbox['depth']} facts wait, {ago}{gap}"


def _instance_lines(status: dict[str, Any], now_us: int) -> Iterator[str]:
    instances = status["instances"]
    if not instances:
        yield "instances   none seen"
        return
    yield f"instances   as seen by this node {_ago(now_us, status['instances_seen_at_us'])}"
    for name, view in sorted(instances.items()):
        pair = f"{view['runner']}/{view['a2a']}" if view["runner"] else "runner unknown"
        verdict = view["verdict"]
        experts = verdict["phase"] or ("packed or not MXFP4" if verdict["known"] else "unknown")
        yield (
            f"  {name}  {view['state'] or 'unknown'}  {pair}  memory fallback: "
            f"{'no' if verdict['known'] and not verdict['phase'] else experts}  "
            f"restarts {view['restarts']}"
        )


def _ago(now_us: int, then_us: int) -> str:
    return f"{max(0, now_us - then_us) // _SECOND_US} s ago"


def _running(state_dir: Path) -> bool:
    try:
        with (state_dir / resident.LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _status_file(state_dir: Path) -> tuple[int, dict[str, Any]]:
    try:
        whole = msgspec.json.decode(files.read_bounded(state_dir / status_file.STATUS_FILE))
        return int(whole["written_at_us"]), dict(whole["status"])
    except (OSError, msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return 0, {}


def _directive(state_dir: Path) -> dict[str, Any] | None:
    """The held directive; its signature was verified when it was taken."""
    try:
        data = files.read_bounded(state_dir / directive_poll.DIRECTIVE_FILE)
        signed = base.decode(data, directive.SignedDirective)
        held = base.decode(signed.signed.encode(), directive.Directive)
    except (OSError, base.MalformedError):
        return None
    return {
        "incarnation": held.incarnation,
        "generation": held.generation,
        "issued_at_us": held.issued_at_us,
        "units": len(held.units),
        "modes": held.modes,
    }


def _outbox(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
        try:
            meta = dict(db.execute("SELECT key, value FROM meta"))
        finally:
            db.close()
        last = meta.get("last_acknowledged_at_us")
        return {
            "outbox_id": meta["outbox_id"],
            "depth": int(meta["next_sequence"]) - 1 - int(meta["acknowledged_through"]),
            "acknowledged_through": int(meta["acknowledged_through"]),
            "last_acknowledged_at_us": None if last is None else int(last),
            "gap_open": "lost_outbox_id" in meta,
        }
    except (sqlite3.Error, KeyError, ValueError):
        return None
