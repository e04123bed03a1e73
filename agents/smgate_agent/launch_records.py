"""Which launch an instance came from: records the launch gate leaves beside the agent.

The launch gate writes `<state-dir>/launches/<launch_id>.json` just before it becomes SGLang, if it
can reach that directory; a launch without a record is watched all the same, unlinked. The file is
one JSON object (unknown keys are ignored):

| key | meaning |
| --- | --- |
| `launch_id` | the id it reported to the controller; also the file's name |
| `started_at_us` | when, by its clock; of several records that fit, the newest is the launch |
| `pid`, `pid_namespace` | process id, and `readlink /proc/self/ns/pid` of that process: the id means something here only in the same namespace |
| `unit_name`, `workload`, `rendezvous`, `nnodes`, `node_rank`, `gpu_uuids` | as in `launch_planned` |
| `model_path` | path of the model on this machine, if it is one |
| `architecture`, `mxfp4` | what the gate read from the model's `config.json` |
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from smgate.wire import base
from smgate_agent import config, files

DIRECTORY: Final = "launches"
RECORD_BYTES_MAX: Final = 64 << 10
RECORDS_MAX: Final = 256
"""Newest records read; a node starts far fewer servers between two clean-ups."""
KEEP_RECORDS_S: Final = 30 * 86400

Process = Literal["alive", "gone", "unknown"]


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record, as above."""

    launch_id: base.Name
    started_at_us: base.Micros = 0
    pid: base.Positive | None = None
    pid_namespace: str | None = None
    unit_name: base.Name | None = None
    workload: base.Name | None = None
    rendezvous: base.Name | None = None
    nnodes: base.Positive = 1
    node_rank: base.Count = 0
    gpu_uuids: tuple[base.GpuUuid, ...] = ()
    model_path: str | None = None
    architecture: base.Name | None = None
    mxfp4: bool | None = None


def read_all(state_dir: Path, *, now_us: int) -> tuple[LaunchRecord, ...]:
    """The records, newest first; old ones are removed, broken ones skipped."""
    found = read(state_dir)
    oldest_us = now_us - KEEP_RECORDS_S * 1_000_000
    old = {one for one in found if one.started_at_us < oldest_us and process(one) != "alive"}
    for one in old:
        with contextlib.suppress(OSError):
            (state_dir / DIRECTORY / f"{one.launch_id}.json").unlink(missing_ok=True)
    return tuple(one for one in found if one not in old)


def read(state_dir: Path) -> tuple[LaunchRecord, ...]:
    """The records, newest first; broken ones are skipped."""
    found: list[LaunchRecord] = []
    try:
        paths = sorted(
            (state_dir / DIRECTORY).glob("*.json"), key=lambda path: path.stat().st_mtime
        )
    except OSError:
        return ()
    for path in paths[-RECORDS_MAX:]:
        try:
            data = files.read_bounded(path, bytes_max=RECORD_BYTES_MAX)
            record = msgspec.json.decode(data, type=LaunchRecord)
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if path.name == f"{record.launch_id}.json":  # it is removed by that name later
            found.append(record)
    return tuple(sorted(found, key=lambda record: record.started_at_us, reverse=True))


def record_of(
    instance: config.Instance, records: Sequence[LaunchRecord], *, alone: bool
) -> LaunchRecord | None:
    """The newest record that fits the instance; None where it cannot be told.

    Args:
        instance: The declared instance.
        records: All records, newest first.
        alone: It is the only instance of the node, so a launch that says nothing else is its own.
    """
    for record in records:
        if instance.launch_id is not None:
            if record.launch_id == instance.launch_id:
                return record
        elif instance.gpu_uuids and record.gpu_uuids:
            if set(instance.gpu_uuids) & set(record.gpu_uuids):
                return record
        elif instance.unit_name is not None and record.unit_name is not None:
            if (instance.unit_name, instance.node_rank) == (record.unit_name, record.node_rank):
                return record
        elif alone:
            return record
    return None


def process(record: LaunchRecord, *, proc: Path = Path("/proc")) -> Process:
    """Does the launched process live? Unknown if its id means nothing in this namespace."""
    if record.pid is None or record.pid_namespace is None:
        return "unknown"
    try:
        if str((proc / "self/ns/pid").readlink()) != record.pid_namespace:
            return "unknown"
        state = files.read_bounded(proc / str(record.pid) / "stat", bytes_max=4096)
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "unknown"
    # The command's name is in parentheses and may hold anything; the state follows the last one.
    return "gone" if state.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"]) else "alive"
