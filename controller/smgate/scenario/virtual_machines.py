"""What becomes of the virtual fleet's machines: new images of the host, and reports that are lost."""

from __future__ import annotations

from smgate.domain import commands
from smgate.scenario.virtual import DAY, HOUR, Actor, World
from smgate.scenario.virtual_servers import Server
from smgate.wire import facts


def reimages(world: World, servers: list[Server]) -> Actor:
    """A machine is set up anew under another name, with the same GPUs; the old name is gone."""
    number = 0
    while True:
        yield world.rng.uniform(1, 5) * DAY
        server = world.rng.choice([one for one in servers if len(one.machines) == 1])
        machine = server.machines[0]
        number += 1
        old, new = machine.name, f"{machine.name.partition('-')[0]}-{number}"
        world.tell(f"-- {old} is set up anew as {new}.")
        server.renamed = new
        server.restart = True
        yield world.rng.uniform(4, 40) * HOUR
        if old in world.fleet.nodes and machine.name == new:
            retire = commands.RetireNode(node=old, reason=f"It is {new} now.")
            world.command("fay", retire, role="operator")


def lost_outboxes(world: World, servers: list[Server]) -> Actor:
    """A disk dies with reports that were not sent yet; its agent says so, and then all it knows."""
    while True:
        yield world.rng.uniform(0.5, 3) * DAY
        server = world.rng.choice(servers)
        machine = world.rng.choice(server.machines)
        lost = len(machine.waiting)
        world.tell(f"-- {machine.name} loses its outbox, with {lost} reports not sent yet.")
        machine.waiting.clear()
        outbox = f"box-{round(world.now_s)}"
        world.report(machine, facts.GapNoticed(lost_outbox_id=outbox))
        yield world.rng.uniform(10, 600)
        again: list[facts.Payload] = [machine.reported()]
        if lost and server.number:  # its launch may be among what was lost
            again.append(server.planned(server.machines.index(machine)))
        closed = facts.GapNoticed(lost_outbox_id=outbox, closed=True)
        world.report(machine, *again, closed)
