"""The virtual fleet's people and misfortunes: who proposes, approves, errs and mends, and what breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from smgate.domain import commands, decider, policy, readings, revocation, waits
from smgate.domain.policy import KIMI_K3
from smgate.domain.waits import Wait
from smgate.scenario.virtual import DAY, HOUR, Actor, Machine, Spec, World
from smgate.scenario.virtual_machines import lost_outboxes, reimages
from smgate.scenario.virtual_servers import GOOD, Server, life, populate

PEOPLE: Final = ("dora", "emil", "fay")
SM: Final = KIMI_K3.candidate_sms[0]
PLANS: Final = (
    policy.RolloutPlan(
        id="",
        gate=KIMI_K3.id,
        sm=SM,
        waves=(policy.Wave(count=1), policy.Wave(percent=20), policy.Wave(percent=100)),
        max_in_flight=4,
        min_sample=1,
    ),
    policy.RolloutPlan(
        id="",
        gate=KIMI_K3.id,
        sm=SM,
        waves=(policy.Wave(count=2), policy.Wave(percent=100)),
        spread_by="rack",
        max_in_flight=8,
        on_new_build="trust_pool",
    ),
)


def on_call(world: World) -> Actor:
    """Somebody looks every few hours, answers what waits for a person, and goes on with the rollout."""
    yield HOUR / 2
    who = PEOPLE[0]
    world.command(
        who,
        commands.SetGateMode(gate=KIMI_K3.id, sm=SM, mode="enforce", reason="Observed enough."),
        accepted_by=PEOPLE[1],
    )
    while True:
        yield world.rng.uniform(1, 5) * HOUR
        who = world.rng.choice(PEOPLE)
        for wait in waits.collect(world.fleet, world.now_us):
            _answer(world, who, wait)
        _propose(world, who)


def _answer(world: World, who: str, wait: Wait) -> None:
    """Do what a wait asks of a person, or leave it for the next look."""
    rng = world.rng
    command: commands.Command | None = None
    match wait.code:
        case "rollout":
            command = _next_of_rollout(world, wait.subject)
        case "adopted":
            accepts = commands.AcceptUnit(unit=wait.subject, reason="It has served for weeks.")
            takes_back = commands.TakeBackUnit(unit=wait.subject, reason="Evidence comes first.")
            command = rng.choice((accepts, takes_back))
        case "change_asked" | "break_glass" | "change_held" if rng.random() < 0.9:  # noqa: PLR2004  mostly
            command = commands.AcceptChange(change=wait.subject, reason="Read it.")
        case "change_asked" | "break_glass" | "change_held":
            command = commands.WithdrawChange(change=wait.subject, reason="Not now.")
        case "breaker_open":
            command = commands.ResetBreaker(reason="Looked at the units that went bad.")
        case "freeze" if rng.random() < 0.1:  # noqa: PLR2004  a freeze lasts a day or more
            command = commands.LiftFreeze(id=wait.subject, reason="It is over.")
        case "flaky" | "suspect" if wait.remaining_us is not None and wait.remaining_us <= 0:
            command = _ruling(world, wait.subject.partition("/")[0])
    if command is not None and rng.random() < 0.8:  # noqa: PLR2004  not everything at once
        world.command(who, command)


def _next_of_rollout(world: World, name: str) -> commands.Command | None:
    match world.fleet.rollouts[name].phase:
        case "proposed":
            return commands.ApproveRollout(rollout=name, reason="Read the plan.")
        case "approved":
            return commands.StartRollout(rollout=name, reason="Two of us are awake.")
        case "paused" if world.rng.random() < 0.8:  # noqa: PLR2004  mostly it goes on
            return commands.ResumeRollout(rollout=name, reason="Looked at it.")
        case "paused":
            return commands.AbortRollout(rollout=name, reason="Not this week.")
        case _:  # it runs, or has ended
            return None


def _ruling(world: World, key: str) -> commands.Command | None:
    failed = sorted(
        gpus
        for gpus, result in world.fleet.keys[key].sets.items()
        if result.flaky or any(one.outcome != "passed" for one in result.worst.values())
    )
    if not failed:
        return None
    broken = {machine.gpu for machine in world.machines if machine.broken}
    gpus = world.rng.choice(failed)
    ruling = "node_fault" if broken.intersection(gpus) else "confirmed"
    return commands.RuleBuild(
        kernel_key=key,
        gpu_uuids=gpus,
        ruling="node_fault" if ruling == "node_fault" else "confirmed",
        reason="Measured again by hand.",
    )


def _propose(world: World, who: str) -> None:
    """A new rollout if none is under way and a qualified key has servers without a grant."""
    fleet = world.fleet
    if any(not rollout.ended for rollout in fleet.rollouts.values()):
        return
    without = 0
    for unit in fleet.units.values():
        keys = readings.launch_keys(fleet, unit) or set()
        good = bool(keys) and all(fleet.keys[key].standing == "qualified" for key in keys)
        without += good and readings.grant_in_force(fleet, unit) is None
    if without > 2:  # noqa: PLR2004  not for one or two
        name = f"k3-{len(fleet.rollouts) + 1}"
        plan = replace(world.rng.choice(PLANS), id=name)
        world.command(who, commands.ProposeRollout(plan=plan, reason=f"{without} could have it."))


def operators(world: World) -> Actor:
    """About twice a day somebody steers something, with or without a good reason."""
    yield DAY
    while True:
        yield world.rng.uniform(2, 22) * HOUR
        who = world.rng.choice(PEOPLE)
        units = sorted(world.fleet.units)
        unit = world.rng.choice(units)
        for command in _orders(world, unit):
            _steer(world, who, command)
            yield world.rng.uniform(0.1, 6) * HOUR


def _steer(world: World, who: str, command: commands.Command) -> None:
    """With another person beside them, alone for a time, or asked and left to who is on call."""
    how = world.rng.random()
    if how < 0.6:  # noqa: PLR2004  mostly two sit together
        other = world.rng.choice([person for person in PEOPLE if person != who])
        world.command(who, command, accepted_by=other)
    elif how < 0.75 and decider.direction_of(command) == "widens":  # noqa: PLR2004  now and then
        world.command(who, command, break_glass_s=world.rng.choice([1, 6]) * round(HOUR))
    else:
        world.command(who, command)


def _orders(world: World, unit: str) -> list[commands.Command]:
    """A few commands, one after the other: what was done, and mostly how it is undone."""
    rng = world.rng
    glass = rng.random() < 0.3  # noqa: PLR2004  now and then
    running = [r.plan.id for r in world.fleet.rollouts.values() if not r.ended] or ["k3-none"]
    pin = commands.PinUnit(
        unit=unit, direction="on", break_glass=glass, reason="Asked by its owner."
    )
    stories: list[list[commands.Command]] = [
        [
            commands.PinUnit(unit=unit, direction="off", reason="Its owner doubts it."),
            commands.UnpinUnit(unit=unit, reason="Cleared up."),
        ],
        [pin, commands.UnpinUnit(unit=unit, reason="No longer needed.")],
        [
            commands.ExcludeUnit(unit=unit, reason="A benchmark."),
            commands.IncludeUnit(unit=unit, reason="The benchmark is over."),
        ],
        [commands.PauseRollout(rollout=running[0], reason="An odd log line.")],
        [commands.HaltRollout(rollout=running[0], reason="The wrong window: meant another.")],
        [
            commands.DisableGate(gate=KIMI_K3.id, reason="A drill of the kill switch."),
            commands.EnableGate(gate=KIMI_K3.id, reason="The drill is over."),
        ],
        [commands.DeclareFreeze(id=f"freeze-{rng.randrange(3)}", reason="Nobody is here.")],
        [
            commands.PublishPolicy(
                policy=policy.Policy(exposure_limit_units=rng.choice([None, 5, 20])),
                reason="As much as we want to lose at once.",
            )
        ],
        [
            commands.SetGateMode(gate=KIMI_K3.id, sm=SM, mode="observe", reason="Look again."),
            commands.SetGateMode(gate=KIMI_K3.id, sm=SM, mode="enforce", reason="Looked."),
        ],
        [
            commands.PublishIssue(
                issue=policy.KnownIssue(
                    id="upstream-1", title="Reported upstream", match={"flashinfer": ("0.7.3*",)}
                ),
                reason="Read it upstream.",
            ),
            commands.WithdrawIssue(issue_id="upstream-1", reason="It was another model."),
        ],
        [commands.ReleaseUnit(unit=unit, reason="Handed to another team.")],
        [
            revocation.RevokeGrants(rollout=running[0], unit=unit, reason="It answers oddly."),
            commands.ClearMemory(unit=unit, reason="It was the network."),
        ],
    ]
    return rng.choice(stories)


def outages(world: World) -> Actor:
    """The controller goes away, for an hour or a weekend."""
    while True:
        yield world.rng.uniform(2, 8) * DAY
        hours = world.rng.choice([1, 5, 60])
        world.tell(f"-- The controller goes away for {hours} h.")
        world.counts["hours_without_controller"] += hours
        world.core.go_away()
        yield hours * HOUR
        world.core.come_back()
        world.tell("-- The controller is back.")


def partitions(world: World) -> Actor:
    """The network of a rack breaks: its machines serve on, and report everything afterwards."""
    while True:
        yield world.rng.uniform(0.5, 4) * DAY
        rack = world.rng.choice(world.machines).rack
        cut = [machine for machine in world.machines if machine.rack == rack and machine.connected]
        minutes = world.rng.choice([3, 30, 600])
        world.tell(f"-- {rack} ({len(cut)} machines) loses its network for {minutes} min.")
        for machine in cut:
            machine.connected = False
            world.core.heard.disconnect(machine.name)
        yield minutes * 60.0
        for machine in cut:
            machine.connected = True
            world.core.heard.connect(machine.name)
            world.report(machine)


def drivers(world: World, servers: list[Server]) -> Actor:
    """A rack gets the next driver branch: another kernel key, though no image changed."""
    while True:
        yield world.rng.uniform(4, 9) * DAY
        rack = world.rng.choice(world.machines).rack
        world.tell(f"-- {rack} gets driver branch 610.")
        there = [machine for machine in world.machines if machine.rack == rack]
        _install(servers, there, driver_version="610.10.01")


def images(world: World, servers: list[Server]) -> Actor:
    """Every Friday at five half of the fleet gets a new image; its kernel may be wrong."""
    yield 4 * DAY + 17 * HOUR
    number = 2
    while True:
        number += 1
        version = f"0.7.{number}"
        if world.may("wrong") and world.rng.random() < 0.5:  # noqa: PLR2004  every second one
            world.wrong.add(version)
            if world.rng.random() < 0.3:  # noqa: PLR2004  the worse ones
                world.unseen.add(version)
        wrong = " with a wrong kernel that nobody knows of" if version in world.wrong else ""
        wrong += ", and that every self-test passes" if version in world.unseen else ""
        some = [m for m in world.machines if m.pool or world.rng.random() < 0.5]  # noqa: PLR2004
        world.tell(f"-- {len(some)} machines get FlashInfer {version}{wrong}.")
        _install(servers, some, flashinfer_version=version)
        yield 7 * DAY


def _install(servers: list[Server], machines: list[Machine], **versions: str) -> None:
    names = {machine.name for machine in machines}
    for server in servers:
        if names.isdisjoint(machine.name for machine in server.machines):
            continue  # all machines of one server get it together
        for machine in server.machines:
            machine.build = msgspec.structs.replace(machine.build, **versions)
        server.restart = True


def bad_recipes(world: World, servers: list[Server]) -> Actor:
    """A recipe with `--config=` for which SGLang ignores what is appended, on an old image."""
    while True:
        yield world.rng.uniform(1, 6) * DAY
        server = world.rng.choice(servers)
        names = ", ".join(machine.name for machine in server.machines)
        world.tell(f"-- {names} starts from a recipe whose --config= hides what is appended.")
        before = [machine.build for machine in server.machines]
        for machine in server.machines:
            machine.build = msgspec.structs.replace(GOOD, sglang_version="0.5.18")
        server.config_ignored = server.restart = True
        yield world.rng.uniform(4, 30) * HOUR
        for machine, build in zip(server.machines, before, strict=True):
            machine.build = build
        server.config_ignored, server.restart = False, True
        world.tell(f"-- The recipe of {names} is mended.")


def broken_machines(world: World) -> Actor:
    """Now and then the memory of one machine goes bad: its checks fail, whatever the build."""
    while True:
        yield world.rng.uniform(1, 5) * DAY
        machine = world.rng.choice(world.machines)
        machine.broken = True
        world.tell(f"-- The GPU memory of {machine.name} goes bad.")
        yield world.rng.uniform(1, 3) * DAY
        machine.broken = False
        world.tell(f"-- {machine.name} has a new board.")


def play(spec: Spec) -> World:
    """Play one run from its first moment to its last; the world as it is then."""
    world = World(spec)
    servers = populate(world)
    for server in servers:
        world.start(life(world, server))
    world.start(on_call(world))
    for fault, actor in (
        ("people", operators(world)),
        ("away", outages(world)),
        ("silence", partitions(world)),
        ("driver", drivers(world, servers)),
        ("image", images(world, servers)),
        ("bf16", bad_recipes(world, servers)),
        ("broken", broken_machines(world)),
        ("reimage", reimages(world, servers)),
        ("lost", lost_outboxes(world, servers)),
    ):
        if world.may(fault):
            world.start(actor)
    world.run()
    return world
