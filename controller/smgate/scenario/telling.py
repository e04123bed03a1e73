"""Events as lines of an incident report, for people who were not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from smgate.domain import decisions as d, rulings as r
from smgate.domain.events import Recorded

NAMES_MAX: Final = 4
"""Names written out in one line; of more, the number is said."""


def names(found: Sequence[str]) -> str:
    """A list of names, short."""
    more = len(found) - NAMES_MAX
    return ", ".join(found[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


SENTENCES: Final[dict[type, Callable[[Any], str]]] = {
    d.BuildQualified: lambda e: f"key {e.kernel_key} is qualified on {len(e.gpu_sets)} GPU sets",
    d.BuildSuspected: lambda e: (
        f"key {e.kernel_key} is suspect: {e.check} failed on {names(e.gpu_uuids)} ({e.reason})"
    ),
    d.FleetUnreachable: lambda e: (
        f"{len(e.nodes)} of {e.known_nodes} nodes went silent at once: {names(e.nodes)}"
    ),
    d.FleetReachable: lambda e: (
        f"{names(e.nodes)} returned; {e.unreachable_nodes} are still silent"
    ),
    d.BuildFailed: lambda e: f"key {e.kernel_key} FAILED, in {names(e.chassis)}",
    d.BuildCleared: lambda e: (
        f"key {e.kernel_key} is cleared: the failure was {names(e.node_fault_gpu_uuids)}'s own"
    ),
    d.GrantEnded: lambda e: f"{e.unit} loses its grant: {e.sentence}",
    d.WaveOpened: lambda e: (
        f"wave {e.wave} of {e.rollout} opens with {len(e.units)} of {e.eligible}: {names(e.units)}"
    ),
    d.WaveJoined: lambda e: f"{names(e.units)} join wave {e.wave} of {e.rollout}",
    d.WaveJudged: lambda e: f"wave {e.wave} of {e.rollout} {e.verdict}: {e.sentence}",
    d.RolloutCompleted: lambda e: f"{e.rollout} is complete with {names(e.kernel_keys)}",
    d.BreakerTripped: lambda e: (
        f"the BREAKER opens: {len(e.units)} units went bad within {e.window_s} s"
    ),
    d.EpisodeOpened: lambda e: f"ALARM {e.cause} on SM {e.sm}: {names(e.units)}: {e.sentence}",
    d.EpisodeClosed: lambda e: f"alarm {e.episode.partition('/')[0]} is over",
    d.WaitTimedOut: lambda e: f"{e.owner} was waited for in vain ({e.code} {e.subject})",
    d.Adopted: lambda e: f"{e.unit} was found on the target: adopted until a person rules",
    d.TargetFaulted: lambda e: f"{e.unit} faulted on the target: {e.sentence}",
    d.UnitDisagreed: lambda e: f"the ranks of {e.unit} run different runners",
    r.RolloutHalted: lambda e: f"{e.rollout} HALTS ({e.code}): {e.reason}",
    r.RolloutPaused: lambda e: f"{e.rollout} is paused ({e.code}): {e.reason}",
}
"""What the controller says of its own decisions. Any other it takes is no news."""

GROUPED: Final[dict[type, tuple[str, str]]] = {
    d.Granted: ("unit", "grants {}"),
    d.NodeWentSilent: ("node", "{} went silent"),
    d.NodeReturned: ("node", "{} returned"),
}
"""Events of which many come at once: one line for all of them."""


def _asked(event: Any) -> str:  # noqa: ANN401  any ruling
    """What a person did, in the words of the ruling."""
    shown = [
        str(value)
        for name in (
            "rollout",
            "unit",
            "gate",
            "sm",
            "mode",
            "direction",
            "id",
            "kernel_key",
            "ruling",
        )
        if (value := getattr(event, name, None)) is not None
    ]
    plan = getattr(event, "plan", None) or getattr(event, "issue", None)
    shown += [plan.id] if plan is not None else []
    kind = "".join(f" {c.lower()}" if c.isupper() else c for c in type(event).__name__).strip()
    return f'{kind}: {" ".join(shown)} "{event.reason}"'


def report(recorded: Sequence[Recorded]) -> list[str]:
    """The news of some events in a row: who, and what. Facts of nodes are no news by themselves."""
    told: list[str] = []
    groups: dict[type, list[str]] = {}
    for one in recorded:
        who = one.actor.rpartition(":")[2]
        kind = type(one.event)
        if kind in GROUPED:
            groups.setdefault(kind, []).append(getattr(one.event, GROUPED[kind][0]))
        elif kind in SENTENCES:
            told.append(f"{who}: {SENTENCES[kind](one.event)}")
        elif one.actor.startswith("operator:"):
            told.append(f"{who}: {_asked(one.event)}")
    told += [f"controller: {GROUPED[kind][1].format(names(of))}" for kind, of in groups.items()]
    return told
