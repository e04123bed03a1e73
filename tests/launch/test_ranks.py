"""The ranks of one server do the same, whoever of them hears the controller: real gates on loopback."""

import concurrent.futures
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import nacl.signing
import pytest
from tests.launch import nvml_library, several, stand_ins
from tests.launch.asking import ENFORCE, SAFE, TARGET, given_for

from smgate_agent.launch import ranks

UNIT = "k3-prod"
GRANTED = ("append", "flashinfer_mxfp4", "granted")


class Unit:
    """Nodes of one server, each with its gate, state folder and GPUs."""

    def __init__(self, folder, archive, k3, nnodes):
        self.k3, self.nnodes, self.port = k3, nnodes, several.free_port()
        self.nodes = []
        for rank in range(nnodes):
            (folder / f"rank-{rank}").mkdir()
            node = stand_ins.Node(folder / f"rank-{rank}", archive)
            gpus = [{"uuid": f"GPU-{rank:04d}-aaaa", "sm": "10.7"}]
            node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(node.folder / "nvml", gpus))
            node.enroll(None, node=f"node-{rank}")
            self.nodes.append(node)
        self.granted_for = None

    def argv(self, rank, *more, port=None):
        own = ["--nnodes", str(self.nnodes), "--node-rank", str(rank)]
        own += ["--dist-init-addr", f"127.0.0.1:{port or self.port}"]
        return ["serve", "--model-path", str(self.k3), *own, *more]

    def start(self, rank, *more, node=None, after_s=0.0, deadline_s=10, port=None):
        """What this rank's command was given behind its own arguments."""
        time.sleep(after_s)
        argv = self.argv(rank, *more, port=port)
        options = ["--unit", UNIT, "--deadline-s", str(deadline_s)]
        seen = (node or self.nodes[rank]).launch("sglang", *argv, options=options)["argv"][1:]
        assert seen[: len(argv)] == argv
        return seen[len(argv) :]

    def together(self, *starts):
        """Start several ranks at once: each a dict of `start`'s arguments."""
        with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:
            waiting = [
                pool.submit(self.start, one.pop("rank"), *one.pop("more", ()), **one)
                for one in starts
            ]
            return [one.result() for one in waiting]

    def all_ranks(self, **keywords):
        return self.together(*({"rank": rank, **keywords} for rank in range(self.nnodes)))

    def learn(self):
        """What a launch of this unit is decided for: told by a controller, once."""
        with stand_ins.Controller(stand_ins.honest(lambda one: stand_ins.directive(
            stand_ins.entry(one, "untouched", None, "observe", unit=UNIT)
        ))) as controller:  # fmt: skip
            self.nodes[0].enroll(controller.url)
            self.start(0)
            (launch,) = controller.launches()
        self.nodes[0].enroll(None, node="node-0")
        (self.nodes[0].state / "directive.json").unlink(missing_ok=True)
        self.granted_for = given_for(launch)

    def hold(self, rank, *, form=GRANTED, decided_at=41, modes=ENFORCE, **changes):
        unit = stand_ins.entry(
            {"launch_id": "another"}, *form, unit=UNIT, given_for=self.granted_for,
            decided_at=decided_at,
        )  # fmt: skip
        held = stand_ins.directive(unit, modes=modes, node=f"node-{rank}", **changes)
        self.nodes[rank].hold(held)

    def enforce(self, rank):
        self.nodes[rank].hold(stand_ins.directive(modes=ENFORCE, node=f"node-{rank}"))

    def codes(self):
        return [node.stderr.partition("(")[2].partition(",")[0] for node in self.nodes]


@pytest.fixture
def unit(tmp_path, archive, k3):
    return Unit(tmp_path, archive, k3, 2)


@pytest.fixture
def granted(unit):
    """Both ranks hold the same decision for the target."""
    unit.learn()
    for rank in range(2):
        unit.hold(rank)
    return unit


def test_ranks_that_hold_the_same_decision_take_the_target_together(granted):
    assert granted.all_ranks() == [TARGET, TARGET]
    assert granted.codes() == ["ranks_agree", "ranks_agree"]


def test_one_rank_alone_never_takes_it(granted):
    assert granted.start(0, deadline_s=4) == SAFE
    assert granted.start(1, deadline_s=4) == SAFE


def test_ranks_of_two_generations_take_the_safe_value(granted):
    granted.hold(1, decided_at=57, generation=58)
    assert granted.all_ranks() == [SAFE, SAFE]
    assert granted.codes() == ["ranks_safe", "ranks_safe"]


def test_ranks_of_two_incarnations_take_the_safe_value(granted):
    granted.hold(1, incarnation="log-2")
    assert granted.all_ranks() == [SAFE, SAFE]


def test_a_rank_that_holds_nothing_follows_the_others_to_the_safe_value(granted):
    (granted.nodes[1].state / "directive.json").unlink()
    assert granted.all_ranks() == [SAFE, SAFE]


def test_a_rank_that_knows_nothing_does_what_the_fleets_default_is_elsewhere(unit):
    unit.enforce(0)
    assert unit.all_ranks() == [SAFE, SAFE]


def test_ranks_of_which_none_knows_anything_leave_the_command_alone(unit):
    assert unit.all_ranks() == [[], []]
    assert unit.codes() == ["local_untouched", "local_untouched"]


@pytest.mark.parametrize("chooser", [0, 1])
def test_a_choice_on_one_rank_leaves_all_alone(granted, chooser):
    starts = [{"rank": rank} for rank in range(2)]
    starts[chooser]["more"] = ["--moe-runner-backend", "triton"]
    assert granted.together(*starts) == [[], []]


@pytest.mark.parametrize("late", [0, 1])
def test_a_late_rank_gets_the_same_value(granted, late):
    starts = [{"rank": rank, "deadline_s": 20} for rank in range(2)]
    starts[late]["after_s"] = 4
    assert granted.together(*starts) == [TARGET, TARGET]


def test_a_rank_that_never_comes_costs_the_others_the_target(tmp_path, archive, k3):
    unit = Unit(tmp_path, archive, k3, 3)
    unit.learn()
    for rank in range(3):
        unit.hold(rank)
    assert unit.together({"rank": 0, "deadline_s": 6}, {"rank": 1, "deadline_s": 8}) == [SAFE, SAFE]
    assert unit.codes()[:2] == ["ranks_safe", "ranks_safe"]


def test_a_rank_that_dies_while_it_waits_is_not_counted(tmp_path, archive, k3):
    unit = Unit(tmp_path, archive, k3, 3)
    unit.learn()
    for rank in range(3):
        unit.hold(rank)
    node = unit.nodes[1]
    dying = subprocess.Popen(
        [sys.executable, "-I", node.archive, "launch", "--state-dir", node.state, "--unit", UNIT,
         "--deadline-s", "30", "--", "sglang", *unit.argv(1)],
        env=node.environ, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def die():
        time.sleep(3)
        dying.kill()
        dying.wait()
        return unit.start(2, deadline_s=10)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        third = pool.submit(die)
        assert unit.start(0, deadline_s=20) == SAFE
        assert third.result() == SAFE


class Proxy:
    """Stands between a rank and rank 0; after so many bytes it carries nothing more, either way."""

    def __init__(self, port, bytes_max):
        self.left, self.target = bytes_max, ranks.address_of(f"127.0.0.1:{port}")
        self.port = several.free_port()
        self.listener = socket.create_server(ranks.address_of(f"127.0.0.1:{self.port}"))
        self.opened = [self.listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                try:
                    there = socket.create_connection(self.target)
                except OSError:
                    here.close()
                    continue
                self.opened += [here, there]
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1):
                if self.left > 0:
                    self.left -= 1
                    other.sendall(data)

    def close(self):
        for one in self.opened:
            one.close()


@pytest.mark.parametrize(
    ("bytes_max", "expected"), [(20, SAFE), (120, SAFE), (1 << 20, TARGET)]
)  # in the middle of the report; after it, before anything else; never
def test_a_network_that_parts_in_the_middle_ends_in_the_same_value(granted, bytes_max, expected):
    with contextlib.closing(Proxy(granted.port, bytes_max)) as proxy:
        starts = ({"rank": 0, "deadline_s": 8}, {"rank": 1, "deadline_s": 10, "port": proxy.port})
        assert granted.together(*starts) == [expected, expected]


def test_two_launches_of_one_unit_at_once_never_take_the_target(granted, tmp_path, archive, k3):
    (tmp_path / "again").mkdir()
    other = Unit(tmp_path / "again", archive, k3, 2)
    other.granted_for = granted.granted_for
    for rank in range(2):
        other.hold(rank)
    first = [{"rank": rank, "deadline_s": 9, "after_s": 3 * (1 - rank)} for rank in range(2)]
    second = [{**one, "node": other.nodes[one["rank"]]} for one in first]
    assert granted.together(*first, *second) == [SAFE] * 4


# One hears the controller


def deciding(value, unit_launches):
    """A controller that decides for the unit and waits for nobody."""

    def decide(launch):
        unit_launches.append(launch)
        unit = stand_ins.entry(
            launch, "append", value, "granted", unit=UNIT, given_for=given_for(launch)
        )
        return stand_ins.directive(unit, node=f"node-{launch['node_rank']}")

    return stand_ins.honest(decide, 2.0)


@pytest.mark.parametrize("hears", [0, 1])
@pytest.mark.parametrize(("value", "expected"), [("flashinfer_mxfp4", TARGET), ("marlin", SAFE)])
def test_the_rank_that_hears_the_controller_tells_the_others(unit, hears, value, expected):
    with stand_ins.Controller(deciding(value, [])) as controller:
        unit.nodes[hears].enroll(controller.url, node=f"node-{hears}")
        assert unit.all_ranks(deadline_s=20) == [expected, expected]
    assert [("by directive" in node.stderr) for node in unit.nodes] == [True, True]


@contextlib.contextmanager
def false_rank_0(unit, told):
    """Somebody else at rank 0's address, who says this to whoever comes."""
    with socket.create_server(ranks.address_of(f"127.0.0.1:{unit.port}")) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(told)

        threading.Thread(target=serve, daemon=True).start()
        yield


def lie(signed=None):
    agreed = {"form": "append", "value": "flashinfer_mxfp4", "code": "granted"}
    proof = {"launch_id": "another", "signed": signed}
    return json.dumps({"agreed": agreed, "proof": proof}).encode() + b"\n"


def forged():
    unit = stand_ins.entry({"launch_id": "another"}, *GRANTED, unit=UNIT)
    return lie(stand_ins.sign(stand_ins.directive(unit), nacl.signing.SigningKey(b"\x09" * 32)))


LIES = {
    "no proof": lie(), "signed by a stranger": forged(), "nothing": b"", "no JSON": b"HTTP/1.1 200\n",
    "a list": b"[]\n", "another value": b'{"agreed": {"form": "append", "value": "triton", "code": "x"}}\n',
    "too much": b"x" * (2 << 20),
}  # fmt: skip


@pytest.mark.parametrize("told", LIES.values(), ids=LIES)
def test_nobody_else_talks_a_rank_into_the_target(unit, told):
    unit.enforce(1)
    with false_rank_0(unit, told):
        assert unit.start(1, deadline_s=4) == SAFE


def test_what_is_no_report_of_this_unit_changes_nothing(granted):
    stop = threading.Event()

    def disturb():
        report = {"unit": "other", "rank": 1, "nnodes": 2, "standing": "hands_off", "safe": None}
        said = [b"", b"GET / HTTP/1.1\r\n\r\n", json.dumps(report).encode() + b"\n"]
        said += [
            json.dumps({**report, "unit": UNIT, "rank": 7}).encode() + b"\n",
            b"\xff" * 999 + b"\n",
        ]
        while not stop.is_set():
            for one in said:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(
                        ranks.address_of(f"127.0.0.1:{granted.port}"), timeout=1
                    ) as connection,
                ):
                    connection.sendall(one)
            time.sleep(0.3)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        assert granted.all_ranks() == [TARGET, TARGET]
    finally:
        stop.set()
        disturber.join()


def test_the_meeting_is_where_sglang_has_no_port():
    for port in (1024, 20000, 64000, 65000, 65535):
        _, met = ranks.address_of(f"host:{port}")
        assert 0 < met <= 65535
        assert abs(met - port) > 1000
    assert ranks.address_of("fd00::7:20000") == ("fd00::7", 21117)
