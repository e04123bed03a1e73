"""The language of the domain's tests: given a fleet, when something happens, then this.

A `Fleet` starts from an empty log. Nodes say facts, people give commands, time passes in seconds,
and after each of them the planner runs until it has nothing more to say. Nothing is faked: facts,
commands, fold and plan are the real ones; only the log is a list.

Names are short on purpose: a node `a` has one GPU `GPU-a`, its unit is found by the node's name,
and its launches are numbered `a-1`, `a-2`. The model is Kimi-K3 and the build is one that SGLang
can run the target with, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests import given_people

from smgate.domain import (
    commands,
    decisions,
    events,
    evolve,
    facts,
    genesis,
    keys,
    planner,
    policy,
    rules,
    sensing,
    state,
    unit_commands,
    values,
    waits,
)
from smgate.domain.waits import SECOND_US, Wait

GATE = policy.KIMI_K3.id
TARGET = policy.KIMI_K3.target
SAFE = "marlin"
K3 = policy.KIMI_K3.architecture
START_US = 1_700_000_000 * SECOND_US
POOL = ("p1", "p2", "p3")
PACKED = "mxfp4-pack-quantized"
ROUNDS_MAX = 60
"""Rounds of planning after one happening; more than this is a plan that does not end."""

BUILD = values.Build(
    sglang_version="0.5.23",
    flashinfer_version="0.7.2.post1",
    driver_version="580.95.05",
    torch_cuda="13.0",
    cuda_toolkit="13.0",
)
LAYOUT = values.Layout(tp=8, experts=896, hidden_size=3584, intermediate_size=3072, top_k=16)
MODEL = values.Model(digest="ab" * 8, architecture=K3, format_top_level=PACKED, format_group=PACKED)
ONLY_TOP_LEVEL = replace(MODEL, digest="cd" * 8, format_group=None)
NOT_PACKED = replace(MODEL, digest="ef" * 8, format_top_level=None, format_group=None)
OTHER_MODEL = values.Model(digest="99" * 8, architecture="LlamaForCausalLM")


def build(**changes: Any) -> values.Build:
    """The usual build, with some versions changed."""
    return replace(BUILD, **changes)


def key_of(
    made: values.Build = BUILD, sm: str = "10.7", layout: values.Layout = LAYOUT, a2a: str = "none"
) -> str:
    """The kernel key of a build."""
    key = keys.kernel_key(sm=sm, build=made, layout=layout, a2a=a2a)
    assert key is not None
    return key


KEY = key_of()


class Fleet(given_people.People):
    """A fleet under test."""

    def __init__(self, **numbers: Any) -> None:
        """`numbers` are those of the policy that differ from the shipped one."""
        self.now_us = START_US
        self.state = state.Fleet()
        self.history: list[events.Recorded] = []
        self.waits: tuple[Wait, ...] = ()
        self.contacts: dict[str, int] = {}
        self._launches: dict[str, int] = {}
        self._planned: state.Fleet | None = None
        self._planner = planner.Planner()
        for event in genesis.events():
            self.record(event, "controller")
        if numbers:
            self.orders(commands.PublishPolicy(policy=policy.Policy(**numbers), reason="a test"))

    # What happens

    def record(
        self, event: events.Event, actor: str, *, stream: str | None = None
    ) -> events.Recorded:
        """One event at the end of the log, folded; nothing is planned yet."""
        recorded = events.Recorded(
            position=self.state.position + 1,
            at_us=self.now_us,
            occurred_at_us=self.now_us,
            stream=stream or actor,
            version=self.state.position + 1,
            actor=actor,
            event=event,
        )
        self.history.append(recorded)
        evolve.evolve(self.state, recorded)
        return recorded

    def says(self, node: str, *said: facts.Fact, outbox: str | None = None) -> None:
        """A node reports facts, in one batch; then the leader plans."""
        for fact in said:
            self.record(fact, f"node:{node}", stream=outbox)
        self.settle()

    def settle(self) -> None:
        """Plan, record, fold, until the planner has nothing to say."""
        for _ in range(ROUNDS_MAX):
            of_changes = self._planned_incrementally()
            plan = planner.plan(self.state, self.now_us)
            assert of_changes == plan
            if not plan.events:
                self.waits = tuple(waits.collect(self.state, self.now_us))
                return
            for event in plan.events:
                self.record(event, "controller")
        raise AssertionError("the planner does not come to an end")

    def _planned_incrementally(self) -> planner.Plan:
        if self._planned is not self.state:
            self._planned, self._planner = self.state, planner.Planner()
        return self._planner.plan(self.state, self.now_us)

    def later(self, seconds: float, *, silent: Iterable[str] = ()) -> None:
        """Time passes, in one step. Every node stays in contact but those named."""
        self.now_us += round(seconds * SECOND_US)
        heard = dict.fromkeys(self.state.nodes.keys() - set(silent), self.now_us)
        self.contacts.update(heard)
        for event in sensing.sense(self.state, contacts=self.contacts, now_us=self.now_us):
            self.record(event, "controller")
        self.settle()

    def away(self, seconds: float) -> None:
        """Nobody leads for a while; then a leader takes over."""
        away_us = round(seconds * SECOND_US)
        self.now_us += away_us
        self.record(
            decisions.LeadershipTaken(
                epoch=self.state.epoch + 1,
                holder="c1",
                away_us=away_us,
                rules_version=rules.RULES_VERSION,
            ),
            "controller",
        )
        self.later(0)

    # Nodes

    def node(self, *names: str, sm: str | None = "10.7", **changes: Any) -> None:
        """Nodes report themselves; each has a chassis of its own and stands in rack r1."""
        for name in names:
            gpus = (values.Gpu(uuid=f"GPU-{name}", sm=sm),)
            reported = facts.NodeReported(agent_version="1", gpus=gpus, rack="r1", chassis=name)
            self.record(replace(reported, **changes), f"node:{name}")
        self.settle()

    def launch(
        self, node: str, *, sm: str | None = "10.7", settled: bool = True, **changes: Any
    ) -> str:
        """A launch gate reports one launch of one rank."""
        number = self._launches[node] = self._launches.get(node, 0) + 1
        planned = facts.LaunchPlanned(
            launch_id=f"{node}-{number}",
            platform="cuda",
            argv_read=True,
            gpus=(values.Gpu(uuid=f"GPU-{node}", sm=sm),),
            model=MODEL,
            model_digest=MODEL.digest,
            build=BUILD,
            layout=LAYOUT,
        )
        self.record(replace(planned, **changes), f"node:{node}")
        if settled:
            self.settle()
        return planned.launch_id

    def applies(self, node: str) -> None:
        """The launch gate of a node's newest launch did what it was told."""
        decided = self.decided(node)
        self.says(
            node,
            facts.OverrideApplied(
                launch_id=f"{node}-{self._launches[node]}",
                form="untouched" if decided.value is None else "appended",
                value=decided.value,
                source="directive",
                code=decided.code,
            ),
        )

    def instance(self, node: str, state: str = "serving", **changes: Any) -> None:
        """The server of a node's newest launch is in a state."""
        number = self._launches.get(node)
        changed = facts.InstanceChanged(
            instance_id="k3",
            state=state,  # type: ignore[arg-type]
            gpu_uuids=(f"GPU-{node}",),
            launch_id=None if number is None else f"{node}-{number}",
        )
        self.says(node, replace(changed, **changes))

    def effective(self, node: str, runner: str = TARGET, a2a: str = "none") -> None:
        """The server of a node attests the pair it resolved."""
        self.says(
            node,
            facts.EffectiveSeen(
                instance_id="k3",
                runner=runner,
                a2a=a2a,
                source="server_info",
                architecture=K3,
                mxfp4=True,
            ),
        )

    def serves(self, node: str, runner: str = TARGET, a2a: str = "none", **changes: Any) -> None:
        """The server of a node serves, and attests what it runs."""
        self.instance(node, **changes)
        self.effective(node, runner, a2a)

    def bakes(self, node: str, seconds: int, *, requests: int = 100) -> None:
        """The server of a node reports an interval of serving."""
        self.says(
            node,
            facts.BakeInterval(instance_id="k3", interval_s=seconds, requests=requests, failures=0),
        )

    def check(
        self,
        node: str,
        name: str = "moe_mxfp4",
        outcome: str = "passed",
        *,
        made: values.Build = BUILD,
        **changes: Any,
    ) -> None:
        """A self-test ends on a node."""
        number = self._launches.get(node)
        finished = facts.CheckFinished(
            check=name,
            outcome=outcome,  # type: ignore[arg-type]
            reason="a_reason",
            sm="10.7",
            gpu_uuids=(f"GPU-{node}",),
            build=made,
            layout=LAYOUT,
            probe_version="1",
            negative_control="caught",
            launch_id=None if number is None else f"{node}-{number}",
        )
        self.says(node, replace(finished, **changes))

    def passes(self, *nodes: str, made: values.Build = BUILD, **changes: Any) -> None:
        """Every required check passes on these nodes."""
        for node in nodes:
            for name in policy.KIMI_K3.required_checks:
                self.check(node, name, made=made, **changes)

    # Whole stories

    def enforce(self, sm: str = "10.7") -> Fleet:
        """A person sets an SM to enforce."""
        self.orders(commands.SetGateMode(gate=GATE, sm=sm, mode="enforce", reason="go"))
        return self

    def qualified(self, made: values.Build = BUILD) -> Fleet:
        """A build's kernel key is qualified on the pool."""
        self.node(*POOL, pool=True)
        self.passes(*POOL, made=made)
        assert self.standing(made) == "qualified"
        return self

    def rollout(
        self, name: str = "r1", *, waves: Sequence[policy.Wave] | None = None, **changes: Any
    ) -> None:
        """A rollout is proposed, approved by another person, and started."""
        plan = policy.RolloutPlan(
            id=name,
            gate=GATE,
            sm="10.7",
            waves=tuple(waves or (policy.Wave(percent=100),)),
            max_in_flight=100,
            bake_s=600,
        )
        self.orders(commands.ProposeRollout(plan=replace(plan, **changes), reason="better"))
        self.orders(commands.ApproveRollout(rollout=name, reason="agreed"), by="bob")
        self.orders(commands.StartRollout(rollout=name, reason="now"))

    def granted(self, *nodes: str, **changes: Any) -> Fleet:
        """Nodes run servers that a rollout granted the target and that have been restarted on it."""
        self.node(*nodes)
        for node in nodes:
            self.launch(node)
        self.rollout(select=policy.Selector(units=tuple(map(self.id, nodes))), **changes)
        for node in nodes:
            self.restarts(node)
            assert self.told(node) == ("append", TARGET, "granted")
        return self

    def restarts(self, node: str, **changes: Any) -> None:
        """A node's server starts anew, as it is told, and serves with what it was told."""
        self.launch(node, **changes)
        self.applies(node)
        self.serves(node, self.decided(node).value or "auto")

    # What stands

    def id(self, name: str) -> str:
        """A unit's id, by its node's name or its own."""
        return unit_commands.find_unit(self.state, name).id

    def unit(self, name: str) -> state.Unit:
        """A unit, by its node's name or its own."""
        return self.state.units[self.id(name)]

    def override(self, name: str) -> decisions.OverrideSet:
        """What a unit is told."""
        found = self.unit(name).override
        assert found is not None
        return found

    def decided(self, name: str) -> decisions.OverrideSet:
        """What a unit's launch was told: by its node's name, also for a unit of several nodes."""
        for unit in self.state.units.values():
            launch = unit.launch
            if launch is not None and any(r.node == name for r in launch.ranks.values()):
                assert launch.decided is not None
                return launch.decided
        raise AssertionError(f"no launch of {name}")

    def told(self, name: str) -> tuple[str, str | None, str]:
        """Form, value and code of what a unit is told."""
        override = self.override(name)
        return override.form, override.value, override.code

    def would(self, name: str) -> tuple[str, str | None, str]:
        """Form, value and code of what observe mode holds back."""
        would = self.override(name).would
        assert would is not None
        return would.form, would.value, would.code

    def standing(self, made: values.Build = BUILD) -> str:
        """The standing of a build's kernel key."""
        return self.state.keys[key_of(made)].standing

    def phase(self, name: str = "r1") -> str:
        """Where a rollout stands."""
        return self.state.rollouts[name].phase

    def verdicts(self, name: str = "r1") -> list[str | None]:
        """How the opened waves of a rollout were judged."""
        return [wave.verdict for wave in self.state.rollouts[name].waves]

    def alarms(self) -> set[str]:
        """Causes of the alarms that hold now."""
        return {
            episode.cause
            for episode in self.state.episodes.values()
            if episode.closed_us is None and episode.absent_led_us is None
        }

    def seen(self, kind: type) -> list[Any]:
        """Every event of one class, in order."""
        return [recorded.event for recorded in self.history if isinstance(recorded.event, kind)]
