"""The virtual fleet's machines and servers: what they report, and that they do as they are told.

What a server resolves comes from the tested model of SGLang's own rules, so a wrong decision shows
as it would on a real one.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from smgate.domain import readings, upstream, values
from smgate.domain.policy import KIMI_K3
from smgate.scenario.virtual import DAY, HOUR, Actor, Machine, World
from smgate.wire import facts

K3: Final = facts.Model(
    digest="5a1fe0c3d2b49687",
    architecture=KIMI_K3.architecture,
    format_top_level=KIMI_K3.weight_format,
    format_group=KIMI_K3.weight_format,
)
LAYOUT: Final = facts.Layout(tp=8, experts=896, hidden_size=3584, intermediate_size=3072, top_k=16)
GOOD: Final = facts.Build(
    sglang_version="0.5.23",
    flashinfer_version="0.7.2",
    torch_cuda="13.0",
    driver_version="600.21.04",
)
GATE_WAITS_S: Final = 180.0
"""How long a launch gate waits for a decision, its self-tests included."""
BAKES_S: Final = 4 * HOUR
"""How long after its start a server on the target reports what it serves."""

State = Literal["starting", "serving", "unhealthy", "exited"]


@dataclass(slots=True)
class Server:
    """One server over one or more machines, and what its launch gate holds."""

    machines: list[Machine]
    name: str | None = None
    a2a: str | None = None
    config_ignored: bool = False
    """What is appended never reaches SGLang."""
    restart: bool = False
    renamed: str | None = None
    """The new name of its machine, from its next start on."""
    hook: bool = False
    """Its machines' agents restart it when they are told to; else its owner does when it suits."""
    hooked: int = 0
    """The order that its hook ran for last."""
    number: int = 0
    told: str | None = None
    held: dict[str, str | None] = field(default_factory=dict)

    def launch_id(self, machine: Machine) -> str:
        """The id of a rank's newest launch."""
        return f"{machine.name}-{self.number}"

    def planned(self, rank: int) -> facts.LaunchPlanned:
        """What the launch gate of one rank reads."""
        machine = self.machines[rank]
        return facts.LaunchPlanned(
            launch_id=self.launch_id(machine),
            platform="cuda",
            argv_read=True,
            gpus=machine.gpus,
            unit_name=self.name,
            nnodes=len(self.machines),
            node_rank=rank,
            asked_a2a=self.a2a,
            config_file="ignored" if self.config_ignored else "none",
            model_digest=K3.digest,
            model=K3,
            build=machine.build,
            layout=LAYOUT,
            restarter="hook" if self.hook else "external",
        )

    def changed(self, rank: int, state: State, exit_code: int | None = None) -> facts.Payload:
        """A rank's server changed state."""
        machine = self.machines[rank]
        return facts.InstanceChanged(
            instance_id="sglang",
            state=state,
            gpu_uuids=tuple(gpu.uuid for gpu in machine.gpus),
            launch_id=self.launch_id(machine),
            unit_name=self.name,
            nnodes=len(self.machines),
            node_rank=rank,
            exit_code=exit_code,
        )


def life(world: World, server: Server) -> Actor:
    """A server from its first start on: launch, load, serve, end, again."""
    rng = world.rng
    yield rng.uniform(60, HOUR)
    for machine in server.machines:
        world.report(machine, machine.reported())
    deaths = 0
    while True:
        if server.renamed is not None:
            world.core.heard.disconnect(server.machines[0].name)
            server.machines[0].name, server.renamed = server.renamed, None
            world.report(server.machines[0], server.machines[0].reported())
        server.number += 1
        server.restart = False
        yield from _asks(world, server)
        resolved = _resolves(server)
        if (yield from _loads(world, server, resolved)):
            deaths = 0
            yield from _serves(world, server, resolved)
        else:
            deaths = min(deaths + 1, 6)  # its owner tries less and less often
        yield rng.uniform(60, 300) * 2**deaths


def _asks(world: World, server: Server) -> Actor:
    """Every rank reports its launch, does the checks asked of it, and gets one value."""
    rng = world.rng
    for rank, machine in enumerate(server.machines):
        late = world.may("late") and rng.random() < 0.05  # noqa: PLR2004  one in twenty
        yield rng.uniform(120, 900) if rank and late else rng.uniform(0, 15)
        world.report(machine, server.planned(rank))
    began_s, answered = world.now_s, set[str]()
    first = server.machines[0]
    while world.now_s - began_s < GATE_WAITS_S and all(m.connected for m in server.machines):
        for machine in server.machines:
            asked = world.fleet.launch_wants.get(server.launch_id(machine), ())
            if any(one.open for one in asked) and machine.name not in answered:
                answered.add(machine.name)
                yield rng.uniform(20, 80)
                if not (world.may("hang") and rng.random() < 0.03):  # noqa: PLR2004  a check hangs
                    world.report(machine, *_checked(world, server, machine))
        unit = world.fleet.units[world.fleet.launch_units[server.launch_id(first)]]
        decided = unit.launch.decided if unit.launch is not None else None
        if decided is not None and server.launch_id(first) in decided.launch_ids:
            server.told = server.held[_of(first)] = decided.value
            _applied(world, server, "directive", decided.code)
            return
        yield 10.0
    # Nobody answered: what was held for this build, else the safe value.
    server.told = server.held.get(_of(first), "marlin" if server.a2a is None else None)
    _applied(world, server, "local_rule", "controller_unreachable")


def _of(machine: Machine) -> str:
    """What a directive was given for: all of a build that changes in this world."""
    return f"{machine.build.sglang_version} {machine.build.flashinfer_version} {machine.build.driver_version}"


def _applied(
    world: World, server: Server, source: Literal["directive", "local_rule"], code: str
) -> None:
    for machine in server.machines:
        applied = facts.OverrideApplied(
            launch_id=server.launch_id(machine),
            form="untouched" if server.told is None else "appended",
            value=server.told,
            source=source,
            code=code,
        )
        world.report(machine, applied)


def _checked(world: World, server: Server, machine: Machine) -> list[facts.Payload]:
    wrong = machine.broken or machine.build.flashinfer_version in world.wrong - world.unseen
    return [
        facts.CheckFinished(
            check=check,
            outcome="failed" if wrong and check == "moe_mxfp4" else "passed",
            reason="cosine_too_low" if wrong and check == "moe_mxfp4" else "ok",
            sm=machine.sm,
            gpu_uuids=tuple(gpu.uuid for gpu in machine.gpus),
            chassis=f"chassis-{machine.gpu}",
            build=machine.build,
            layout=LAYOUT,
            a2a=server.a2a or "none",
            probe_version="0.1.0",
            negative_control="caught",
            launch_id=server.launch_id(machine),
        )
        for check in KIMI_K3.required_checks
    ]


def _resolves(server: Server) -> upstream.Resolution:
    machine = server.machines[0]
    reached = None if server.config_ignored else server.told
    return upstream.upstream_auto_of(
        sglang_version=machine.build.sglang_version or "",
        sm=machine.sm,
        torch_cuda=machine.build.torch_cuda,
        a2a=server.a2a or "none",
        backend=reached or "auto",
        architecture=K3.architecture,
        layout=readings.mxfp4_layout(msgspec.convert(msgspec.structs.asdict(K3), values.Model)),
    )


def _runs_wrong(world: World, server: Server, runner: str | None) -> bool:
    wrong = any(m.build.flashinfer_version in world.wrong for m in server.machines)
    return wrong and runner == KIMI_K3.target


def _loads(
    world: World, server: Server, resolved: upstream.Resolution
) -> Generator[float, None, bool]:
    """Load the weights for a quarter of an hour; False if the server dies of it."""
    rng = world.rng
    runner = resolved.runner or "auto"
    for rank, machine in enumerate(server.machines):
        seen = facts.EffectiveSeen(
            instance_id="sglang",
            runner=runner,
            a2a=resolved.a2a or "none",
            source="server_info" if rank == 0 else "log",
            architecture=K3.architecture,
            mxfp4=True,
            sglang_version=machine.build.sglang_version,
        )
        world.report(machine, server.changed(rank, "starting"), seen)
    yield rng.uniform(600, 1800)
    no_memory = bool(resolved.memory_fallback) and len(server.machines) == 1
    crashes = _runs_wrong(world, server, resolved.runner) and rng.random() < 0.5  # noqa: PLR2004
    dies = resolved.raises is not None or no_memory or crashes
    for rank, machine in enumerate(server.machines):
        told: list[facts.Payload] = []
        if resolved.memory_fallback:
            phase: Literal["active", "crashed"] = "crashed" if dies else "active"
            told.append(facts.MemoryFallbackSeen(instance_id="sglang", phase=phase))
        told.append(server.changed(rank, "exited", 1) if dies else server.changed(rank, "serving"))
        world.report(machine, *told)
    return not dies


def _serves(world: World, server: Server, resolved: upstream.Resolution) -> Actor:
    """Serve until its owner restarts it or something ends it."""
    rng = world.rng
    first = server.machines[0]
    began_s = world.now_s
    ends_s = began_s + (rng.uniform(3, 8) * HOUR if first.pool else rng.uniform(0.5, 4) * DAY)
    while world.now_s < ends_s and not server.restart:
        step_s = rng.uniform(1200, 2400)
        yield step_s
        if rng.random() < 0.05 and world.told_otherwise(server.launch_id(first), server.told):  # noqa: PLR2004
            break  # its owner restarts it within half a day
        if resolved.runner == KIMI_K3.target and world.now_s - began_s < BAKES_S:
            wrong = _runs_wrong(world, server, resolved.runner)
            interval = facts.BakeInterval(
                instance_id="sglang",
                interval_s=round(step_s),
                requests=1000,
                failures=1000 if wrong else rng.randrange(3),
            )
            world.report(first, interval)
        if _drains(world, server):
            break
        if world.may("crash") and rng.random() < 0.001:  # noqa: PLR2004  once in three weeks
            for rank, machine in enumerate(server.machines):
                world.report(machine, server.changed(rank, "exited", 1))
            return
        if world.may("crash") and rng.random() < 0.0003:  # noqa: PLR2004  once in ten weeks
            world.report(first, facts.GpuFaultSeen(gpu_uuid=first.gpus[0].uuid, xid=79))
        if world.may("hang") and rng.random() < 0.0005:  # noqa: PLR2004  once in six weeks
            world.report(first, server.changed(0, "unhealthy"))
            yield rng.uniform(300, 2400)
            world.report(first, server.changed(0, "serving"))
    for rank, machine in enumerate(server.machines):
        world.report(machine, server.changed(rank, "exited", 0))


def _drains(world: World, server: Server) -> bool:
    """Run the drain hook once if smgate ordered a restart; True if the server is to end now."""
    unit = world.unit_of(server.launch_id(server.machines[0]))
    drain = world.fleet.drains.get(unit)
    connected = all(machine.connected for machine in server.machines)
    if drain is None or not server.hook or not connected or drain.order == server.hooked:
        return False
    server.hooked = drain.order
    ends = world.rng.choices(["succeeded", "failed", "no word"], [90, 7, 3])[0]
    if ends == "no word" and world.may("hang"):
        return False
    outcome: Literal["succeeded", "failed"] = "failed" if ends == "failed" else "succeeded"
    ended = facts.DrainHookEnded(order=drain.order, unit=unit, outcome=outcome)
    world.report(server.machines[0], ended)
    return outcome == "succeeded"


def populate(world: World) -> list[Server]:
    """Machines in racks of eight, and the servers over them: mostly one machine of SM107 each."""
    rng, nodes = world.rng, world.spec.nodes
    pool = max(4, nodes // 15)
    servers: list[Server] = []
    sms = ["10.7"] * 14 + ["10.0", "10.3", "9.0", "8.0"]
    while len(world.machines) < nodes:
        number = len(world.machines)
        is_pool = number < pool
        sm = "10.7" if is_pool else rng.choice(sms)
        wide = 1 if is_pool else rng.choices([1, 2, 3], [85, 10, 5])[0]
        made = [
            Machine(f"n{n:03}", sm, f"rack-{n // 8 + 1}", is_pool, GOOD, f"GPU-{n:03}")
            for n in range(number, min(nodes, number + wide))
        ]
        world.machines.extend(made)
        deepep = not is_pool and rng.random() < 0.04  # noqa: PLR2004  a few expert-parallel ones
        servers.append(
            Server(
                made,
                name=f"k3-{number:03}" if len(made) > 1 else None,
                a2a="deepep" if deepep else None,
                hook=rng.random() < 0.6,  # noqa: PLR2004  most
            )
        )
    return servers
