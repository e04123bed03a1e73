"""Servers among the processes of a machine: what is one, what is none, and what cannot be seen."""

import os
import subprocess
import sys
import threading
import time

import pytest
from tests.agent.fake_proc import Proc

from smgate_agent import clock, config, files, found, instance, launch_records, scan

KEY = "sk-PLANTED-in-argv"
SERVE = ("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--api-key", KEY)


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "proc").mkdir()
    return Proc(tmp_path / "proc")


def look(proc):
    return scan.look(proc.root, logs=proc.root / "var")


@pytest.mark.parametrize(
    "argv",
    [
        SERVE,
        ("/opt/sglang/bin/python3.12", "-I", "/usr/local/bin/sglang", "serve", "--model", "/m"),
        ("python", "-X", "dev", "-u", "-m", "sglang.cli.main", "serve", "/m"),
        ("python3", "-m", "sglang", "serve", "--model-path", "/m"),
        ("python3", "-m", "dynamo.sglang", "--model-path", "/m"),
        ("python3", "/sgl/python/sglang/launch_server.py", "--model-path", "/m"),
    ],
)
def test_every_way_to_start_a_server_is_one(proc, argv):
    proc.process(40, *argv)
    (server,) = look(proc).servers
    assert (server.pid, server.port, server.url) == (40, 30000, "http://127.0.0.1:30000")


@pytest.mark.parametrize(
    "argv",
    [
        ("sglang::scheduler_TP0",),
        ("sglang::detokenizer",),
        ("bash", "-c", "python3 -m sglang.launch_server --model-path /m"),
        ("tini", "--", "sglang", "serve", "--model-path", "/m"),
        ("python3", "-m", "smgate_agent.cli", "launch", "--", "sglang", "serve"),
        ("python3", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"),
        ("python3", "train.py", "--model-path", "/m"),
        ("python3", "/usr/bin/sglang", "generate"),
        ("vim", "sglang", "serve"),
        ("python3",),
        ("",),
    ],
)
def test_what_is_no_server_is_none(proc, argv):
    proc.process(40, *argv)
    assert look(proc) == scan.Seen()


def test_a_forked_child_is_no_second_server_and_two_servers_are_two(proc):
    proc.process(40, *SERVE)
    proc.process(41, *SERVE, parent=40)
    proc.process(42, "sglang::scheduler_TP0", parent=41)
    proc.process(50, *SERVE, "--port", "30001")
    assert [(one.pid, one.port) for one in look(proc).servers] == [(40, 30000), (50, 30001)]


def test_ranks_port_and_rendezvous_are_read_and_no_secret_is_kept(proc):
    more = ("--tp=16", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "k3-0.k3:20000")
    proc.process(40, *SERVE, *more, "--port=31000", "--host", "0.0.0.0")
    (server,) = look(proc).servers
    assert (server.nnodes, server.node_rank, server.rendezvous) == (2, 1, "k3-0.k3:20000")
    assert (server.url, server.gpu_count) == ("http://127.0.0.1:31000", 8)
    assert KEY not in repr(look(proc))


def test_an_environment_is_never_opened(proc):
    folder = proc.process(40, *SERVE)
    os.mkfifo(folder / "environ")  # whoever opens it, waits for ever
    assert look(proc).servers


def test_a_port_that_only_a_config_file_knows_is_not_guessed(proc):
    proc.process(40, *SERVE, "--config", "/etc/k3.yaml")
    (server,) = look(proc).servers
    assert server.url is None


def test_a_server_of_a_pod_is_asked_at_the_pods_address_and_read_in_the_nodes_log(proc):
    folder = proc.process(40, *SERVE, "--host", "0.0.0.0", net="net:[2]")
    container = "ab" * 32
    (folder / "cgroup").write_text(f"0::/kubepods.slice/pod1/cri-containerd-{container}.scope\n")
    (folder / "net/fib_trie").write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.244.3.7\n        /32 host LOCAL\n"
        "     |-- 127.0.0.1\n        /32 host LOCAL\n"
    )
    logs = proc.root / "var/log/containers"
    logs.mkdir(parents=True)
    (logs / f"k3-0_prod_main-{container}.log").touch()
    (server,) = look(proc).servers
    assert server.url == "http://10.244.3.7:30000"
    assert (server.log, server.log_format) == (
        str(logs / f"k3-0_prod_main-{container}.log"),
        "cri",
    )
    proc.process(40, *SERVE, net="net:[2]")
    assert look(proc).servers[0].url is None, "it listens on the pod's loopback address alone"


def test_output_in_a_file_is_its_log(proc, tmp_path):
    folder = proc.process(40, *SERVE)
    (tmp_path / "server.log").touch()
    (folder / "fd/2").symlink_to(tmp_path / "server.log")
    assert look(proc).servers[0].log == str(tmp_path / "server.log")


def test_docker_keeps_its_log_by_the_containers_id(proc):
    container = "cd" * 32
    (proc.process(40, *SERVE) / "cgroup").write_text(f"0::/docker/{container}\n")
    folder = proc.root / "var/lib/docker/containers" / container
    folder.mkdir(parents=True)
    (folder / f"{container}-json.log").touch()
    assert look(proc).servers[0].log_format == "docker"


def test_a_machine_that_shows_nothing_says_so_and_never_that_none_runs(proc, tmp_path):
    assert look(proc).code is None
    hidden = scan.look(tmp_path / "nowhere")
    assert (hidden.code, hidden.servers) == ("proc_unreadable", ())
    assert "not looked for" in hidden.sentence
    (tmp_path / "pod").mkdir()
    pod = Proc(tmp_path / "pod", namespace="pid:[4026532000]")
    assert look(pod).code == "own_pid_namespace"


NOBODY = """
import os, pathlib, sys
sys.path[:] = {path!r}
from smgate_agent import scan
if os.geteuid() == 0:
    os.setuid(65534)
print(scan.look(pathlib.Path({proc!r})).code)
"""


def as_nobody(proc):
    """What somebody without root's rights can say."""
    for folder in (proc.root, *proc.root.parents):
        if folder.stat().st_mode & 0o055 != 0o055:
            folder.chmod(folder.stat().st_mode | 0o055)
    code = NOBODY.format(path=[one for one in sys.path if one], proc=str(proc.root))
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_command_line_that_may_not_be_read_is_said(proc):
    (proc.process(40, *SERVE) / "cmdline").chmod(0)
    assert as_nobody(proc) == "processes_hidden"


def test_a_proc_that_hides_other_users_processes_says_so(proc):
    (proc.root / "1/mountinfo").write_text(
        "22 1 0:20 / /proc rw shared:1 - proc proc rw,hidepid=2\n"
    )
    assert as_nobody(proc) == "processes_hidden"


def test_a_process_that_ends_or_whose_id_is_given_away_is_gone(proc):
    proc.process(40, *SERVE)
    assert scan.alive(40, 100, proc.root) is True
    proc.process(40, *SERVE, state="Z")
    assert scan.alive(40, 100, proc.root) is False
    proc.process(40, "other", start=999)
    assert scan.alive(40, 100, proc.root) is False
    proc.end(40)
    assert scan.alive(40, 100, proc.root) is False
    (proc.root / "self").unlink()
    assert scan.alive(40, 100, proc.root) is None, "no /proc tells nothing"


def test_processes_that_vanish_while_they_are_read_are_left_out(proc):
    for name in ("cmdline", "stat"):
        (proc.process(40, *SERVE) / name).unlink()
        assert look(proc) == scan.Seen()


class Watcher:
    """Stands for a watcher: what the finder starts."""

    def __init__(self, declared, process):
        self.declared = declared
        self.process = process
        self.rounds = 1
        self.ended = False


class Machine:
    """A finder over a written /proc and a driver that answers as told."""

    def __init__(self, proc, folder, *instances):
        self.proc = proc
        self.users = {}
        self.started = []
        self.settings = config.AgentConfig(state_dir=str(folder), instance=instances)
        self.finder = self.new()

    def new(self):
        return found.Finder(
            self.settings,
            lambda: self.users,
            self.start,
            threading.Event(),
            clock.ManualClock(),
            proc=self.proc.root,
        )

    def start(self, declared, process):
        self.started.append(Watcher(declared, process))
        return self.started[-1]

    def use(self, pid, *gpus):
        self.users = {gpu: frozenset({pid}) for gpu in gpus}


@pytest.fixture
def machine(proc, tmp_path):
    return Machine(proc, tmp_path)


def test_a_found_server_is_watched_once_its_gpus_are_known_and_settled(proc, machine):
    proc.process(40, *SERVE, "--tp", "2")
    proc.process(41, "sglang::scheduler_TP0", parent=40)
    machine.finder.step()
    assert (machine.started, machine.finder.shown.not_told) == ([], 1)
    machine.use(41, "GPU-1111")
    machine.finder.step()
    machine.finder.step()
    assert machine.started == [], "it will use two"
    machine.use(41, "GPU-1111", "GPU-2222")
    machine.finder.step()
    assert machine.started == []
    machine.finder.step()
    machine.finder.step()
    (watcher,) = machine.started
    assert watcher.declared.gpu_uuids == ("GPU-1111", "GPU-2222")
    assert watcher.process() == "alive"
    assert machine.finder.shown.servers == 1


def test_a_new_start_on_the_same_gpus_has_the_same_name(proc, machine):
    for pid in (40, 60):
        proc.process(pid, *SERVE)
        machine.use(pid, "GPU-1111")
        machine.finder.step()
        machine.finder.step()
        proc.end(pid)
        assert machine.started[-1].process() == "gone"
        machine.started[-1].ended = True
    machine.finder.step()
    first, second = machine.started
    assert first.declared.id == second.declared.id
    assert machine.finder.watchers == []


def test_two_servers_on_the_same_gpus_are_two(proc, machine):
    proc.process(40, *SERVE)
    proc.process(50, *SERVE, "--port", "30001")
    machine.users = {"GPU-1111": frozenset({40, 50})}
    for _ in range(3):
        machine.finder.step()
    assert len({one.declared.id for one in machine.started}) == 2


def test_a_declared_server_is_not_found_again(proc, tmp_path):
    declared = (
        config.Instance(id="by-url", url="http://127.0.0.1:30001"),
        config.Instance(id="by-gpus", log="/x", gpu_uuids=("GPU-1111",)),
    )
    machine = Machine(proc, tmp_path, *declared)
    proc.process(40, *SERVE)
    proc.process(50, *SERVE, "--port", "30001")
    machine.use(40, "GPU-1111")
    for _ in range(3):
        machine.finder.step()
    assert machine.started == []
    assert machine.finder.shown.servers == 2


def test_the_launch_gates_record_links_a_server_of_another_container(proc, machine):
    folder = proc.process(40, *SERVE, "--nnodes", "2", "--dist-init-addr", "a:1", inside=7)
    inside = folder / "root" / config.DEFAULT_STATE_DIR.lstrip("/") / launch_records.DIRECTORY
    inside.mkdir(parents=True)
    (inside / "launch-1.json").write_text(
        '{"launch_id": "launch-1", "pid": 7, "pid_namespace": "pid:[7]", "nnodes": 2,'
        '"workload": "lws:k3-0", "gpu_uuids": ["GPU-1111"]}'
    )
    (inside / "launch-2.json").write_text(
        '{"launch_id": "launch-2", "pid": 8, "pid_namespace": "pid:[7]", "gpu_uuids": ["GPU-9"]}'
    )
    machine.finder.step()
    (watcher,) = machine.started
    assert (watcher.declared.launch_id, watcher.declared.workload) == ("launch-1", "lws:k3-0")


def test_an_agent_that_was_away_tells_that_a_server_ended(proc, machine):
    proc.process(40, *SERVE)
    machine.use(40, "GPU-1111")
    machine.finder.step()
    machine.finder.step()
    assert KEY.encode() not in files.read_bounded(machine.finder._path)
    proc.end(40)
    again = machine.new()
    again.resume()
    assert machine.started[-1].declared == machine.started[0].declared
    assert machine.started[-1].process() == "gone"


def test_after_a_restart_of_the_machine_a_process_with_the_same_id_is_another(proc, machine):
    proc.process(40, *SERVE)
    machine.use(40, "GPU-1111")
    machine.finder.step()
    machine.finder.step()
    (proc.root / "sys/kernel/random/boot_id").write_text("boot-2\n")
    assert machine.started[0].process() == "gone"


def test_a_new_launch_after_an_exit_is_a_restart():
    declared = config.Instance(id="k3", url="http://127.0.0.1:1")
    tracker = instance.Tracker(declared, frozenset(), instance.Memory())

    def launched(name, http, process="alive"):
        record = launch_records.LaunchRecord(launch_id=name)
        tracker.observe(instance.Reading(http=http, process=process, launch=record))

    launched("l-1", "ok")
    launched("l-1", "none", "gone")
    launched("l-2", "ok")
    assert tracker.view.restarts == 1


def test_this_machines_own_processes_are_read():
    code = "import sys, time; print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"up\n"
        assert os.getpid() in scan.parents(process.pid)
        namespace, inside = scan.launched_as(process.pid)
        assert namespace.startswith("pid:[")
        assert inside > 0
        stat = scan._stat(scan.PROC, process.pid)
        assert scan.alive(process.pid, stat.start_ticks)
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
    began = time.monotonic()
    scan.look()
    assert time.monotonic() - began < 20
    assert not scan.alive(process.pid, stat.start_ticks)
