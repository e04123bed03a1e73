"""The drain hook: run once per order, for the server that is there, and never for a stale one."""

import sys
import threading
import time

import msgspec
import pytest

from smgate.wire import directive
from smgate_agent import config, drain, instance

NOW_US = 1_800_000_000_000_000
TARGET = "flashinfer_mxfp4"
ORDER = directive.DrainOrder(
    order=41,
    unit="k3",
    launch_ids=("launch-1",),
    instances={"k3-0": 0},
    deadline_us=NOW_US + 3600 * 1_000_000,
)
TOLD = directive.UnitOverride(
    unit="k3", form="append", value="marlin", code="pinned_off", sentence="", decided_at=40
)
RUNNING = instance.View(state="serving", runner=TARGET, a2a="none", launch_id="launch-1")


def held(*orders, told=TOLD, incarnation="log-1"):
    return directive.Directive(
        incarnation=incarnation,
        generation=41,
        node="node-1",
        issued_at_us=NOW_US,
        units=(told,) if told else (),
        drains=orders or msgspec.UNSET,
    )


class Node:
    """A node with one declared instance and a hook that counts how often it ran."""

    def __init__(self, folder, box, clock_):
        self.folder, self.box, self.clock = folder, box, clock_
        self.view = RUNNING
        self.declared = self.declare(self.counting())
        self.drains = self.start()

    def counting(self, then="pass"):
        script = f"open({str(self.folder / 'ran')!r}, 'a').write('x'); print('sk-PLANTED'); {then}"
        return (sys.executable, "-c", script)

    def declare(self, *hooks, **changes):
        return config.Instance(
            id="k3-0", url="http://127.0.0.1:1", drain_hook=sum(hooks, ()), **changes
        )

    def start(self):
        """The agent starts, perhaps again."""
        drains = drain.Drains(
            self.folder,
            watched=lambda: [drain.Watched(declared=self.declared, view=self.view)],
            outbox_=self.box,
            clock_=self.clock,
            stop=threading.Event(),
        )
        drains.own_up()
        return drains

    def hears(self, *orders, **changes):
        self.drains.confirm(held(*orders, **changes))
        self.drains.step()

    @property
    def runs(self):
        path = self.folder / "ran"
        return len(path.read_text()) if path.exists() else 0

    @property
    def told(self):
        _, pending = self.box.pending()
        return [(f.payload.order, f.payload.outcome, f.payload.exit_code) for f in pending]


@pytest.fixture
def node(tmp_path, box, manual_clock):
    return Node(tmp_path, box, manual_clock)


def test_an_order_runs_the_hook_once_however_often_it_is_confirmed(node):
    for _ in range(3):
        node.hears(ORDER)
    assert node.runs == 1
    assert node.told == [(41, "succeeded", 0)]


def test_a_restarted_agent_does_not_run_it_again(node):
    node.hears(ORDER)
    node.drains = node.start()
    node.hears(ORDER)
    assert node.runs == 1
    assert node.told == [(41, "succeeded", 0)]


def test_the_next_order_runs_it_again_and_so_does_the_same_number_in_a_restored_log(node):
    node.hears(ORDER)
    node.hears(msgspec.structs.replace(ORDER, order=55))
    node.hears(ORDER, incarnation="log-2")
    assert node.runs == 3


@pytest.mark.parametrize(
    "view",
    [
        instance.View(),
        instance.View(state="exited", runner=TARGET, launch_id="launch-1"),
        instance.View(state="serving", runner=TARGET, launch_id="launch-2"),
        instance.View(state="serving", runner=TARGET, launch_id="launch-1", restarts=1),
        instance.View(state="serving", runner=TARGET, launch_id=None, restarts=1),
        instance.View(state="serving", runner="marlin", launch_id="launch-1"),
        instance.View(state="serving", runner=None, launch_id="launch-1"),
    ],
)
def test_a_server_that_is_another_or_gone_or_not_known_on_the_target_is_left_alone(node, view):
    node.view = view
    node.hears(ORDER)
    assert node.runs == 0
    assert node.told == []
    node.view = RUNNING
    node.hears(ORDER)
    assert node.runs == 1


@pytest.mark.parametrize(
    "told",
    [
        None,
        msgspec.structs.replace(TOLD, value=TARGET),
        msgspec.structs.replace(TOLD, form="keep"),
        msgspec.structs.replace(TOLD, form="untouched", value=None),
        msgspec.structs.replace(TOLD, unit="another"),
    ],
)
def test_nothing_is_restarted_that_would_not_come_back_on_another_value(node, told):
    node.hears(ORDER, told=told)
    assert node.runs == 0


def test_a_server_whose_launch_the_agent_cannot_tell_is_known_by_its_name_and_its_starts(node):
    node.view = instance.View(state="serving", runner=TARGET, launch_id=None)
    node.hears(msgspec.structs.replace(ORDER, instances={"another": 0}))
    assert node.runs == 0
    node.hears(ORDER)
    assert node.runs == 1


def test_after_its_deadline_an_order_is_stale(node):
    node.clock.advance(3600)
    node.hears(ORDER)
    assert (node.runs, node.told) == (0, [])


def test_an_order_that_was_withdrawn_is_not_run(node):
    node.drains.confirm(held(ORDER))
    node.drains.confirm(held())
    node.drains.step()
    assert node.runs == 0


def test_what_was_confirmed_before_is_not_acted_on_again(node):
    node.view = instance.View()
    node.hears(ORDER)
    node.view = RUNNING
    node.drains.step()
    assert node.runs == 0


@pytest.mark.parametrize(("where", "runs"), [("first_rank", 0), ("every_rank", 1)])
def test_of_several_nodes_the_first_ranks_acts_unless_every_rank_is_to(node, where, runs):
    node.declared = node.declare(node.counting(), nnodes=2, node_rank=1, drain_hook_on=where)
    node.hears(ORDER)
    assert node.runs == runs


def test_a_hook_that_fails_is_told_with_its_exit_code_and_nothing_it_printed(node, caplog):
    node.declared = node.declare(node.counting("raise SystemExit(3)"))
    node.hears(ORDER)
    assert node.told == [(41, "failed", 3)]
    assert "sk-PLANTED" not in caplog.text


def test_a_hook_that_is_not_there_fails(node):
    node.declared = node.declare(("/no/such/program",))
    node.hears(ORDER)
    assert node.told == [(41, "failed", None)]


def test_an_instance_without_a_hook_says_so_at_once(node):
    node.declared = node.declare()
    node.hears(ORDER)
    assert node.told == [(41, "no_hook", None)]


def test_a_hook_that_does_not_end_is_killed_with_its_children(node):
    script = f"sleep 60 & echo $! > {node.folder / 'child'}; wait"
    node.declared = node.declare(("/bin/sh", "-c", script), drain_hook_timeout_s=0.5)
    started = time.monotonic()
    node.hears(ORDER)
    assert time.monotonic() - started < 10
    assert node.told == [(41, "timeout", None)]
    child = int((node.folder / "child").read_text())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _alive(child):
        time.sleep(0.02)
    assert not _alive(child)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_cannot_be_remembered_is_not_begun(node):
    (node.folder / drain.ORDERS_FILE).mkdir()
    with pytest.raises(IsADirectoryError):
        node.hears(ORDER)
    assert node.runs == 0


def test_a_memory_that_cannot_be_read_runs_nothing(node):
    (node.folder / drain.ORDERS_FILE).write_text("garbage")
    with pytest.raises(msgspec.DecodeError):
        node.start()
