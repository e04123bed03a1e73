"""Random histories of appends, retries, conflicts, take-overs and reopenings, against a model."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

import hypothesis
import pytest
from hypothesis import stateful, strategies as st
from tests.log_records import record

from smgate.log import open as log_open, port, verify

STREAMS = st.sampled_from(["a", "b", "c"])


class LogMachine(stateful.RuleBasedStateMachine):
    """The model is a list of keys with their payloads, in order."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 1_000
        self.log: list[tuple[str, int, bytes]] = []
        self.epoch = 0
        self.times: list[int] = []
        self.closing = contextlib.ExitStack()
        if self.kind == "memory":
            self.url = log_open.MEMORY_URL
        else:
            folder = self.closing.enter_context(tempfile.TemporaryDirectory())
            self.url = f"sqlite:///{pathlib.Path(folder) / 'log.db'}"
            log_open.upgrade(self.url)
        self.store = self.open()

    def open(self) -> port.Store:
        return log_open.open_store(self.url, clock_us=lambda: self.now_us)

    def teardown(self) -> None:
        self.store.close()
        self.closing.close()

    def places(self) -> dict[tuple[str, int], tuple[int, bytes]]:
        return {
            (stream, version): (place, data)
            for place, (stream, version, data) in enumerate(self.log, start=1)
        }

    @stateful.rule(step=st.integers(-500, 500))
    def the_clock_moves_also_back(self, step: int) -> None:
        self.now_us += step

    @stateful.rule(
        keys=st.lists(st.tuples(STREAMS, st.integers(1, 8), st.sampled_from([b"x", b"y"]))),
        fence=st.sampled_from(["none", "current", "old"]),
        gapless=st.booleans(),
    )
    def append(self, keys: list[tuple[str, int, bytes]], fence: str, gapless: bool) -> None:
        records = [record(stream, version, data) for stream, version, data in keys]
        epoch = {"none": None, "current": self.epoch, "old": self.epoch - 1}[fence]
        standing, fresh, conflict = self.places(), {}, False
        for stream, version, data in keys:
            known = standing.get((stream, version), (0, fresh.get((stream, version), data)))[1]
            conflict |= known != data
            # A batch that contradicts itself is refused even where one half of it stands.
            conflict |= any((stream, version) == other[:2] and data != other[2] for other in keys)
            if (stream, version) not in standing:
                fresh.setdefault((stream, version), data)
        known_keys = set(standing) | {key[:2] for key in keys}
        gap = gapless and any(
            version > 1 and (stream, version - 1) not in known_keys for stream, version in fresh
        )
        before = self.store.head()
        refusals = (port.ConflictError, port.GapError, port.FencedError)
        refusal: port.LogError | None = None
        appended = None
        try:
            appended = self.store.append(records, writer="w", epoch=epoch, gapless=gapless)
        except refusals as caught:
            refusal = caught
        if refusal is not None:
            expected = {
                port.ConflictError: conflict,
                port.FencedError: fence == "old",
                # A gap inside the batch may also be between records that already stand.
                port.GapError: gapless and (gap or hole_inside(keys)),
            }
            assert expected[type(refusal)], refusal
            assert self.store.head() == before
            return
        assert appended is not None
        assert not conflict
        assert not gap
        assert fence != "old"
        self.log += [(stream, version, data) for (stream, version), data in fresh.items()]
        if fresh:
            self.times.append(appended.head.recorded_at_us)
        now = self.places()
        assert appended.positions == tuple(now[key[:2]][0] for key in keys)
        assert set(appended.already) == {
            standing[key[:2]][0] for key in keys if key[:2] in standing
        }
        assert appended.head.position == len(self.log)

    @stateful.rule()
    def another_leader_takes_over(self) -> None:
        self.epoch += 1
        assert self.store.take_epoch(holder=f"leader {self.epoch}") == self.epoch

    @stateful.precondition(lambda self: self.kind != "memory")
    @stateful.rule()
    def the_process_restarts(self) -> None:
        self.store.close()
        self.store = self.open()

    @stateful.invariant()
    def the_log_is_the_model_and_whole(self) -> None:
        read = self.store.read(after=0)
        assert [(one.stream, one.version, one.data) for one in read] == self.log
        assert [one.position for one in read] == list(range(1, len(self.log) + 1))
        for stream in ("a", "b", "c"):
            versions = sorted(one[1] for one in self.log if one[0] == stream)
            assert [one.version for one in self.store.read_stream(stream)] == versions
            assert self.store.stream_version(stream) == max(versions, default=0)
        assert self.times == sorted(self.times)
        report = verify.verify(self.store)
        assert report.ok, report.first_bad
        assert report.positions == len(self.log)


def hole_inside(keys: list[tuple[str, int, bytes]]) -> bool:
    given = {key[:2] for key in keys}
    lowest = {stream: min(key[1] for key in keys if key[0] == stream) for stream, _ in given}
    return any(
        version != lowest[stream] and (stream, version - 1) not in given
        for stream, version in given
    )


QUICK = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
ON_DISK = (hypothesis.Phase.generate,)  # Shrinking there takes minutes; memory shows it smaller.


@pytest.mark.parametrize(
    ("kind", "examples", "phases"), [("memory", 60, QUICK), ("sqlite", 25, ON_DISK)]
)
def test_random_histories_leave_the_log_as_the_model_says(
    kind: str, examples: int, phases: tuple[hypothesis.Phase, ...]
) -> None:
    machine = type(f"LogMachineOn{kind}", (LogMachine,), {"kind": kind})
    stateful.run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            phases=phases,
        ),
    )
