"""A fleet of any size for the benches: its log, made by the real commands, fold and planner.

Every node runs one K3 server on a candidate SM under enforce. A rollout's first wave is open with a
tenth of them, restarted onto the target and baking; all others hold the safe value and wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smgate.domain import (
    commands,
    decider,
    events,
    evolve,
    facts,
    genesis,
    planner,
    policy,
    rulings,
    state,
    values,
)

GATE = policy.KIMI_K3.id
TARGET = policy.KIMI_K3.target
START_US = 1_700_000_000_000_000
WAVE_SHARE = 10
POOL_NODES = 3
NODES_PER_RACK = 16

BUILD = values.Build(
    sglang_version="0.5.23",
    flashinfer_version="0.7.2.post1",
    driver_version="580.95.05",
    torch_cuda="13.0",
    cuda_toolkit="13.0",
)
LAYOUT = values.Layout(tp=8, experts=896, hidden_size=3584, intermediate_size=3072, top_k=16)
PACKED = "mxfp4-pack-quantized"
MODEL = values.Model(
    digest="ab" * 8,
    architecture=policy.KIMI_K3.architecture,
    format_top_level=PACKED,
    format_group=PACKED,
)


class History:
    """A log in the making, and its fold."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.fleet = state.Fleet()
        self.recorded: list[events.Recorded] = []
        self._planner = planner.Planner()
        for event in genesis.events():
            self.record(event, "controller")

    def record(self, event: events.Event, actor: str) -> None:
        """One event at the end of the log."""
        position = self.fleet.position + 1
        one = events.Recorded(
            position=position,
            at_us=self.now_us,
            occurred_at_us=self.now_us,
            stream=actor,
            version=position,
            actor=actor,
            event=event,
        )
        self.recorded.append(one)
        evolve.evolve(self.fleet, one)

    def order(self, command: commands.Command, by: str) -> None:
        """A person's command, and zoe's agreement to what needs another person."""
        roles = frozenset({"approver"})
        found = decider.decide(self.fleet, command, by=by, roles=roles, now_us=self.now_us)
        for event in found:
            self.record(event, f"operator:{by}")
        if found and isinstance(found[-1], rulings.ChangeAsked):
            change = list(self.fleet.changes)[-1]
            self.order(commands.AcceptChange(change=change, reason=command.reason), "zoe")

    def settle(self) -> None:
        """Plan until nothing is left to say."""
        while found := self._planner.plan(self.fleet, self.now_us).events:
            for event in found:
                self.record(event, "controller")


def _gpus(node: str) -> tuple[values.Gpu, ...]:
    return tuple(values.Gpu(uuid=f"GPU-{node}-{number}", sm="10.7") for number in range(8))


def reported(number: int, node: str, *, pool: bool = False) -> facts.NodeReported:
    """What a node says of itself."""
    return facts.NodeReported(
        agent_version="1",
        gpus=_gpus(node),
        rack=f"rack-{number // NODES_PER_RACK}",
        chassis=node,
        pool=pool,
    )


def launch(node: str, number: int) -> facts.LaunchPlanned:
    """One start of a node's server."""
    return facts.LaunchPlanned(
        launch_id=f"{node}-{number}",
        platform="cuda",
        argv_read=True,
        gpus=_gpus(node),
        model=MODEL,
        model_digest=MODEL.digest,
        build=BUILD,
        layout=LAYOUT,
    )


def serves(node: str, number: int, runner: str) -> tuple[facts.Fact, ...]:
    """The node's server runs with a value, and says so."""
    launch_id, gpus = f"{node}-{number}", tuple(gpu.uuid for gpu in _gpus(node))
    return (
        facts.OverrideApplied(
            launch_id=launch_id, form="appended", value=runner, source="directive", code="x"
        ),
        facts.InstanceChanged(
            instance_id="k3", state="serving", gpu_uuids=gpus, launch_id=launch_id
        ),
        effective(runner),
    )


def effective(runner: str) -> facts.EffectiveSeen:
    """What the node's server attests."""
    return facts.EffectiveSeen(
        instance_id="k3",
        runner=runner,
        a2a="none",
        source="server_info",
        architecture=MODEL.architecture,
        mxfp4=True,
    )


def checks(node: str) -> tuple[facts.CheckFinished, ...]:
    """Every required check passes on a node."""
    return tuple(
        facts.CheckFinished(
            check=name,
            outcome="passed",
            reason="ok",
            sm="10.7",
            gpu_uuids=tuple(gpu.uuid for gpu in _gpus(node)),
            build=BUILD,
            layout=LAYOUT,
            probe_version="1",
            negative_control="caught",
            launch_id=None,
        )
        for name in policy.KIMI_K3.required_checks
    )


def rollout(nodes: int, **changes: object) -> policy.RolloutPlan:
    """A tenth first, then all, unless the changes say otherwise."""
    plan = policy.RolloutPlan(
        id="bench",
        gate=GATE,
        sm="10.7",
        waves=(policy.Wave(count=max(1, nodes // WAVE_SHARE)), policy.Wave(percent=100)),
        max_in_flight=nodes,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def names(nodes: int) -> list[str]:
    """Every node but those of the pool."""
    return [f"node-{number:06}" for number in range(nodes)]


def unit(made: History, node: str) -> state.Unit:
    """The server of a node."""
    (found,) = made.fleet.node_units[node]
    return made.fleet.units[found]


def of(nodes: int, *, numbers: policy.Policy | None = None, **changes: object) -> History:
    """The fleet of that many nodes, settled; `changes` are to the rollout's plan."""
    made = History()
    # Nobody is there to accept what is too much at once.
    wide = replace(numbers or made.fleet.policy, change_limit_units=10_000_000)
    made.record(rulings.PolicyPublished(policy=wide, reason="bench"), "operator:alice")
    for number in range(POOL_NODES):
        made.record(reported(number, f"pool-{number}", pool=True), f"node:pool-{number}")
        _says(made, f"pool-{number}", checks(f"pool-{number}"))
    made.order(commands.SetGateMode(gate=GATE, sm="10.7", mode="enforce", reason="bench"), "alice")
    for number, name in enumerate(names(nodes)):
        _says(made, name, (reported(number, name), launch(name, 1)))
    made.settle()
    _say_all(made, names(nodes), lambda name: serves(name, 1, "marlin"))
    plan = rollout(nodes, **changes)
    made.order(commands.ProposeRollout(plan=plan, reason="bench"), "alice")
    made.order(commands.ApproveRollout(rollout="bench", reason="bench"), "bob")
    made.order(commands.StartRollout(rollout="bench", reason="bench"), "alice")
    made.settle()
    granted = [unit for unit in made.fleet.units.values() if unit.grant is not None]
    assert granted
    first = [unit.known_ranks[0].node for unit in granted]
    _say_all(made, first, lambda name: (launch(name, 2),))
    _say_all(made, first, lambda name: serves(name, 2, TARGET))
    assert not planner.plan(made.fleet, made.now_us).events
    return made


def _says(made: History, node: str, said: tuple[facts.Fact, ...]) -> None:
    for fact in said:
        made.record(fact, f"node:{node}")


def _say_all(
    made: History, nodes: list[str], said: Callable[[str], tuple[facts.Fact, ...]]
) -> None:
    for node in nodes:
        _says(made, node, said(node))
    made.settle()
