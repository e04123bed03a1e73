"""The story of the demonstration, told in order; every line is read back from the controller."""

from __future__ import annotations

import os
from typing import Any, Final

from smgate.sim import processes
from smgate.sim.node import Node
from smgate.sim.stage import Demo

GATE: Final = "kimi-k3-mxfp4"


def say(text: str = "") -> None:
    """One line for the person watching."""
    print(text, flush=True)


def indented(text: str) -> str:
    """Somebody else's lines, set apart."""
    return "\n".join(f"      {line}" for line in text.rstrip().splitlines())


def heading(number: int, text: str) -> None:
    """A step of the story."""
    say()
    say(f"{number}. {text}")


def tell(demo: Demo) -> None:
    """The story, in order."""
    _left_alone(demo)
    _observe(demo)
    _qualify(demo)
    _roll_out(demo)
    _suspect(demo)
    _fall_back(demo)


def _left_alone(demo: Demo) -> None:
    heading(1, "What SGLang would do if left alone")
    baseline = [n for n, node in demo.nodes.items() if node.spec.sm in ("10.0", "10.3")]
    demo.restart(*baseline, "rubin-1", "rubin-2")
    demo.each(Node.launch, "rubin-ep-1", "h200-1", "rubin-old-1")
    shown = ("b200-1", "rubin-1", "rubin-old-1", "rubin-ep-1", "h200-1")
    demo.until("all launches decided", lambda: len(demo.units()) >= len(baseline) + len(shown))
    for name in shown:
        spec = demo.nodes[name].spec
        alone = demo.why(demo.unit_on(name))["if_left_alone"]
        effect = (
            "its experts become BF16, 3.76 times the bytes"
            if alone["memory_fallback"]
            else "it dies at model construction"
            if alone["raises"]
            else "packed MXFP4"
        )
        say(
            f"   {name:<12} SM {spec.sm:<5} SGLang {spec.build.sglang_version} resolves "
            f"{alone['runner']}, a2a {alone['a2a']}: {effect}."
        )
    say("   On SM 10.7 nothing has checked that this node's FlashInfer can do it right.")


def _observe(demo: Demo) -> None:
    heading(2, "Observe mode: decided and recorded, nothing changed")
    units = demo.units()
    hands_off = [u for u in units if u["override"]["form"] != "append"]
    say(f"   {len(hands_off)} of {len(units)} units are hands off; SM 10.7 would be:")
    would: dict[str, int] = {}
    for unit in units:
        if unit["sm"] == "10.7" and unit["override"]["would"]:
            name = f"{unit['override']['would']['value'] or 'untouched'} ({unit['override']['would']['code']})"
            would[name] = would.get(name, 0) + 1
    for name, count in sorted(would.items()):
        say(f"     {count:>2} x {name}")
    exposed = sum(bool(u["exposed"]) for u in units)
    say(f"   {exposed} servers run the target though nobody decided so: that is the exposure.")


def _qualify(demo: Demo) -> None:
    heading(3, "Enforce SM 10.7 (what widens takes two people), and qualify a key on the pool")
    yes = ("--yes", "--reason", "demo")
    demo.agree("policy", "publish", "-f", str(demo.state / "policy.yaml"))
    demo.agree("gate", "mode", GATE, "10.7", "enforce")
    demo.agree("gate", "mode", GATE, "9.0", "enforce")
    demo.alice.run("unit", "take-back", demo.unit_on("rubin-2"), *yes)
    demo.restart("rubin-pool-1", "rubin-pool-2", "rubin-pool-3", "h200-1")
    keys = demo.until(
        "a qualified key",
        lambda: [k for k in demo.read("builds")["items"] if k["standing"] == "qualified"],
    )
    say(f"   Kernel key {keys[0]['key']} is qualified: 3 GPU sets of the pool passed.")


def _roll_out(demo: Demo) -> None:
    heading(4, "A rollout: proposed by alice, approved by bob, opened wave by wave")
    yes = ("--yes", "--reason", "demo")
    started = demo.restart(*[n for n in demo.nodes if _joins(n)])
    say(
        f"   {len(started)} more servers start; all get {', '.join(sorted(set(started.values())))}."
    )
    demo.alice.run("rollout", "propose", "-f", str(demo.state / "plan.yaml"), *yes)
    demo.alice.run("rollout", "approve", "rubin-1", *yes, fails=True)
    demo.bob.run("rollout", "approve", "rubin-1", *yes)
    demo.bob.run("rollout", "start", "rubin-1", *yes)
    for wave in range(2):
        members = demo.until(f"wave {wave} open and granted", lambda w=wave: _granted(demo, w))
        if wave == 1:
            demo.alice.run("freeze", "declare", "holiday", *yes)
        nodes = [n for u in demo.units() if u["id"] in members for n in u["nodes"]]
        demo.restart(*nodes)
        demo.each(lambda node: node.bake(3), *[n for n in nodes if demo.nodes[n].spec.rank == 0])
        judged = demo.until(f"wave {wave} judged", lambda w=wave: _judged(demo, w))
        say(
            f"   Wave {wave}: {len(members)} units restarted onto the target; "
            f"{judged['verdict']}: {judged['sentence']}"
        )
    waiting = [u for u in demo.units() if u["sm"] == "10.7" and u["override"]["value"] == "marlin"]
    say(
        f"   The freeze keeps wave 2 shut: {len(waiting)} units stay on the safe value, and "
        "nothing that was granted ends."
    )


def _joins(name: str) -> bool:
    """The Rubin servers that start once the mode is enforce; rubin-1 stays as it was found."""
    apart = ("rubin-1", "rubin-ep-1", "rubin-new-1", "rubin-new-2")
    return name.startswith("rubin-") and "pool" not in name and name not in apart


def _wave(demo: Demo, number: int) -> dict[str, Any] | None:
    shown = demo.read("rollouts/rubin-1/why")["waves"]
    return dict(shown[number]) if len(shown) > number else None


def _granted(demo: Demo, number: int) -> list[str]:
    wave = _wave(demo, number)
    if wave is None:
        return []
    granted = {u["id"] for u in demo.units() if u["override"]["code"] == "granted"}
    members = [str(u) for u in wave["units"]]
    return members if set(members) <= granted else []


def _judged(demo: Demo, number: int) -> dict[str, Any] | None:
    wave = _wave(demo, number)
    return wave if wave is not None and wave["verdict"] != "running" else None


def _suspect(demo: Demo) -> None:
    heading(5, "One failing check makes a kernel key suspect, and holds it")
    runner = demo.restart("rubin-new-1")["rubin-new-1"]
    bad = demo.until(
        "a suspect key",
        lambda: [k for k in demo.read("builds")["items"] if k["standing"] == "suspect"],
    )[0]
    say(
        f"   rubin-new-1 has FlashInfer {demo.nodes['rubin-new-1'].spec.build.flashinfer_version}, "
        "which no known issue names: the enum and the signature are there, and its kernel returns "
        "zeros."
    )
    say(
        f"   Kernel key {bad['key']} is suspect: no new grant for it anywhere; "
        f"the server itself started with {runner}."
    )


def _fall_back(demo: Demo) -> None:
    heading(6, "One server seen in BF16, and the alarm it raises")
    unit = demo.unit_on("rubin-old-1")
    demo.agree("unit", "release", unit)
    runner = demo.restart("rubin-old-1", fits=True)["rubin-old-1"]
    say(f"   SGLang 0.5.18 there, with nothing appended, resolved {runner!r}: BF16 experts.")
    demo.until(
        "a memory_fallback alarm",
        lambda: [a for a in demo.read("alarms")["items"] if a["cause"] == "memory_fallback"],
    )
    say(indented(demo.alice.run("alarm", "ls")))


def what_next(demo: Demo, *, ended: bool) -> None:
    """The commands a newcomer would try; where the controller has ended, how to serve its log."""
    heading(7, "What to type next")
    binary = processes.BIN / "smgate"
    shown = os.path.relpath(binary)
    if ended:
        listen = demo.url.removeprefix("http://")
        say(f"   {shown} serve --database sqlite:///{demo.database} --listen {listen} &")
    say(
        f"   export SMGATE_URL={demo.url} SMGATE_TOKEN_FILE={os.path.relpath(demo.state)}/alice.token"
    )
    for command in (
        f"unit why {demo.unit_on('rubin-old-1')}",
        f"unit why {demo.unit_on('rubin-ep-1')}",
        "unit ls",
        "build ls",
        "rollout why rubin-1",
        "change ls",
        "log tail",
        "log verify",
    ):
        say(f"   {shown} {command}")
