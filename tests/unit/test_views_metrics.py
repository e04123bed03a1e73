"""Metrics computed from the fleet: bounded in number, at 0 beforehand, right when something is."""

from __future__ import annotations

import prometheus_client
from tests import controller_bench as cb

from smgate import metric_families, metric_log, metrics
from smgate.domain import evolve, facts, genesis, rulings
from smgate.domain.events import Event, Recorded
from smgate.domain.policy import RolloutPlan, Wave
from smgate.domain.state import Fleet
from smgate.domain.values import Build, Gpu, Layout, Model
from smgate.log import codec

PROCESS = metrics.Process(
    version="0",
    leading=True,
    leader_failures=0,
    rounds_exhausted=0,
    planned_position=0,
    head_position=0,
    view_position=0,
    waiting=0,
    undelivered_units=0,
    taken_back={},
    beside=metric_log.Beside(0, 0, 0),
)


class Story:
    """Events of a fleet, one after the other."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        for event in genesis.events():
            self.tell("controller", event)

    def tell(self, actor: str, event: Event) -> None:
        position = self.fleet.position + 1
        evolve.evolve(
            self.fleet,
            Recorded(
                position=position,
                at_us=position,
                occurred_at_us=position,
                stream=actor,
                version=position,
                actor=actor,
                event=event,
            ),
        )

    def node(self, number: int, *, build: int = 0, sm: str = "10.7") -> None:
        """A node with a launch of one of many builds, and a server of it."""
        actor, uuid = f"node:n{number}", f"GPU-{number:05}"
        self.tell(actor, facts.NodeReported(agent_version="1", gpus=(Gpu(uuid=uuid, sm=sm),)))
        self.tell(
            actor,
            facts.LaunchPlanned(
                launch_id=f"l{number}",
                platform="cuda",
                argv_read=True,
                gpus=(Gpu(uuid=uuid, sm=sm),),
                model=Model(
                    digest="abcdef0123",
                    architecture=cb.ARCHITECTURE,
                    format_group="mxfp4-pack-quantized",
                ),
                build=Build(
                    sglang_version="0.5.23",
                    flashinfer_version=f"0.7.{build}",
                    driver_version="580.1",
                    torch_cuda="13.0",
                ),
                layout=Layout(experts=64),
            ),
        )
        self.tell(
            actor,
            facts.InstanceChanged(
                instance_id="i", state="starting", gpu_uuids=(uuid,), launch_id=f"l{number}"
            ),
        )

    def runs(self, number: int, runner: str) -> None:
        self.tell(
            f"node:n{number}",
            facts.EffectiveSeen(
                instance_id="i", runner=runner, a2a="none", source="log", mxfp4=True
            ),
        )


def scrape(fleet: Fleet) -> str:
    registry = prometheus_client.CollectorRegistry()
    metrics.Requests(registry)
    registry.register(metrics.FleetCollector(lambda compute: compute(fleet), lambda: PROCESS))
    return prometheus_client.generate_latest(registry).decode()


def series(text: str) -> set[str]:
    return {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}


def value(text: str, name: str) -> float:
    [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.rsplit(" ", 1)[1])


def fleet_of(nodes: int, builds: int) -> Fleet:
    story = Story()
    for number in range(nodes):
        story.node(number, build=number % builds)
        story.runs(number, ("marlin", "auto", "flashinfer_mxfp4", f"runner_{number}")[number % 4])
    return story.fleet


def test_trap_t22_ten_thousand_nodes_and_fifty_builds_make_no_more_series_than_a_few() -> None:
    few, many = scrape(fleet_of(8, 2)), scrape(fleet_of(10_000, 50))
    assert value(many, "smgate_nodes") == 10_000
    assert value(many, 'smgate_kernel_keys{sm="10.7",standing="unknown"}') == 50
    assert series(many) == series(few)
    assert len(series(many)) < 400
    assert "n9999" not in many


def test_trap_t22_a_series_is_there_for_everything_that_may_happen() -> None:
    text = scrape(Story().fleet)
    for sm in ("10.0", "10.3", "10.7"):
        for phase in ("imminent", "active", "crashed"):
            assert value(text, f'smgate_memory_fallbacks_total{{phase="{phase}",sm="{sm}"}}') == 0
        assert value(text, f'smgate_exposed_units{{sm="{sm}"}}') == 0
    assert value(text, "smgate_collector_errors_total") == 0
    assert "_created" not in text


def test_a_new_sm_gets_its_zeros_when_it_is_first_seen() -> None:
    story = Story()
    assert 'sm="12.0"' not in scrape(story.fleet)
    story.node(1, sm="12.0")
    name = 'smgate_memory_fallbacks_total{phase="active",sm="12.0"}'
    assert value(scrape(story.fleet), name) == 0


def test_a_fallback_is_counted_once_and_a_restart_of_the_controller_does_not_reset_it() -> None:
    story = Story()
    story.node(1)
    story.runs(1, "auto")
    total = 'smgate_memory_fallbacks_total{phase="imminent",sm="10.7"}'
    active = 'smgate_memory_fallback_active_instances{phase="imminent",sm="10.7"}'
    for _ in range(2):  # a second collector is a second process on the same log
        text = scrape(story.fleet)
        assert (value(text, total), value(text, active)) == (1, 1)
    story.tell("node:n1", facts.MemoryFallbackCleared(instance_id="i"))
    text = scrape(story.fleet)
    assert (value(text, total), value(text, active)) == (1, 0)


def test_a_server_on_the_target_without_a_grant_is_uncontrolled_and_exposed() -> None:
    story = Story()
    story.node(1)
    story.runs(1, "flashinfer_mxfp4")
    text = scrape(story.fleet)
    assert value(text, 'smgate_exposed_units{sm="10.7"}') == 1
    assert value(text, 'smgate_uncontrolled_units{reason="no_grant",sm="10.7"}') == 1
    assert value(text, 'smgate_units{effective="flashinfer_mxfp4",override="none",sm="10.7"}') == 1


def test_the_newest_rollouts_have_a_series_of_their_own_and_the_rest_do_not() -> None:
    story = Story()
    for number in range(60):
        plan = RolloutPlan(id=f"r{number}", gate=cb.GATE, sm="10.7", waves=(Wave(count=1),))
        story.tell("operator:a", rulings.RolloutProposed(plan=plan, author="a", reason="r"))
        if number:
            story.tell("operator:a", rulings.RolloutAborted(rollout=f"r{number}", reason="r"))
    text = scrape(story.fleet)
    own = {name for name in series(text) if name.startswith("smgate_rollout_wave{")}
    assert len(own) == metrics.ROLLOUTS_MAX
    assert any('rollout="r0"' in name for name in own)  # the one that has not ended
    assert value(text, 'smgate_rollouts{phase="aborted"}') == 59


def test_changes_that_wait_for_a_person_are_counted_by_kind_and_those_answered_are_not() -> None:
    history = Story()
    asked = rulings.ChangeAsked(command="breaker_reset", body={}, by="alice", reason="r")
    history.tell("operator:alice", asked)
    history.tell("operator:alice", asked)
    accepted = rulings.ChangeAccepted(
        change=next(iter(history.fleet.changes)), author="alice", accepted_by="bob", reason="r"
    )
    history.tell("operator:bob", accepted)
    text = scrape(history.fleet)
    assert 'smgate_changes_open{kind="asked"} 1.0' in text
    assert 'smgate_changes_open{kind="break_glass"} 0.0' in text
    assert 'smgate_changes_open{kind="held"} 0.0' in text


def test_a_scrape_that_fails_says_so_instead_of_failing() -> None:
    def broken(_: metrics.OfFleet) -> list[metrics.Metric]:
        raise RuntimeError("the database is gone")

    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics.FleetCollector(broken, lambda: PROCESS))
    text = prometheus_client.generate_latest(registry).decode()
    assert value(text, "smgate_collector_errors_total") == 1


def test_events_are_counted_under_their_stored_names() -> None:
    for stored, kind in codec.NAMES.items():
        assert metric_families.snake(kind.__name__) == stored
