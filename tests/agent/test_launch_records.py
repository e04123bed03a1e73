"""Linking an instance to the launch it came from, only where that can be told."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from smgate_agent import config, launch_records

NAMESPACE = str(Path("/proc/self/ns/pid").readlink())
DAY_US = 86400 * 1_000_000


def record(launch_id, **more):
    return launch_records.LaunchRecord(launch_id=launch_id, **more)


def instance(**more):
    return config.Instance(id="i", log="/x", **more)


def link(declared, *records, alone=False):
    found = launch_records.record_of(declared, records, alone=alone)
    return None if found is None else found.launch_id


def test_a_declared_launch_is_the_only_one_that_fits():
    assert link(instance(launch_id="b"), record("a"), record("b"), alone=True) == "b"
    assert link(instance(launch_id="c"), record("a"), alone=True) is None


def test_shared_gpus_link_and_others_do_not():
    declared = instance(gpu_uuids=("GPU-1", "GPU-2"))
    assert (
        link(declared, record("a", gpu_uuids=("GPU-9",)), record("b", gpu_uuids=("GPU-2",))) == "b"
    )
    assert link(declared, record("a", gpu_uuids=("GPU-9",)), alone=True) is None


def test_the_same_unit_and_rank_link():
    declared = instance(unit_name="u", nnodes=2, node_rank=1)
    assert link(declared, record("a", unit_name="u", node_rank=0)) is None
    assert link(declared, record("a", unit_name="u", nnodes=2, node_rank=1)) == "a"


def test_a_record_that_says_nothing_links_only_where_there_is_one_instance():
    assert link(instance(), record("new"), record("old")) is None
    assert link(instance(), record("new"), record("old"), alone=True) == "new"


def write(state_dir, name, value):
    folder = state_dir / "launches"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_bytes(
        value if isinstance(value, bytes) else json.dumps(value).encode()
    )


def test_records_are_read_newest_first_and_broken_ones_are_skipped(tmp_path):
    assert launch_records.read_all(tmp_path, now_us=0) == ()
    write(
        tmp_path, "a", {"launch_id": "a", "started_at_us": 1, "value": "marlin", "form": "append"}
    )
    write(tmp_path, "b", {"launch_id": "b", "started_at_us": 2})
    write(tmp_path, "c", b"{")
    write(tmp_path, "d", {"launch_id": "not a name !"})
    write(tmp_path, "e", b"[" * 100_000)
    found = launch_records.read_all(tmp_path, now_us=0)
    assert [one.launch_id for one in found] == ["b", "a"]


def test_old_records_go_unless_their_process_lives(tmp_path):
    write(tmp_path, "old", {"launch_id": "old", "started_at_us": 1})
    mine = {"launch_id": "mine", "started_at_us": 1, "pid": os.getpid(), "pid_namespace": NAMESPACE}
    write(tmp_path, "mine", mine)
    found = launch_records.read_all(tmp_path, now_us=31 * DAY_US)
    assert [one.launch_id for one in found] == ["mine"]
    assert not (tmp_path / "launches/old.json").exists()


def test_a_process_is_alive_gone_or_unknown():
    assert launch_records.process(record("a", pid=os.getpid(), pid_namespace=NAMESPACE)) == "alive"
    child = subprocess.Popen(["true"])
    child.wait()
    gone = record("a", pid=child.pid, pid_namespace=NAMESPACE)
    assert launch_records.process(gone) == "gone"


def test_a_process_that_waits_to_be_reaped_is_gone():
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert launch_records.process(record("a", pid=child.pid, pid_namespace=NAMESPACE)) == "alive"
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert launch_records.process(record("a", pid=child.pid, pid_namespace=NAMESPACE)) == "gone"
    child.wait()


@pytest.mark.parametrize(
    "more",
    [{}, {"pid": 1}, {"pid_namespace": NAMESPACE}, {"pid": 1, "pid_namespace": "pid:[1]"}],
)
def test_a_process_id_of_another_namespace_means_nothing_here(more):
    assert launch_records.process(record("a", **more)) == "unknown"
