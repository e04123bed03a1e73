"""What the log says of rollouts, folded: where each stands, and its waves."""

from __future__ import annotations

from collections.abc import Collection, KeysView
from dataclasses import dataclass, field
from typing import Literal

from smgate.domain.policy import Policy, RolloutPlan

Phase = Literal["proposed", "approved", "running", "paused", "halted", "aborted", "completed"]


@dataclass(slots=True, kw_only=True)
class Wave:
    """One opened wave and its members."""

    number: int
    units: tuple[str, ...]
    eligible: int
    position: int
    since_led_us: int
    verdict: str | None = None
    good: tuple[str, ...] = ()
    """Units with a good outcome when it was judged."""
    bad: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    """Units of which a person took back what they had been granted: it neither passes by them nor
    waits for them, until that is cleared or they launch another kernel key."""
    late: set[str] = field(default_factory=set)
    """Those of `units` that came while it was open: it does not wait for them."""
    places: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Where each of `units` stands among them."""

    def __post_init__(self) -> None:
        self.places = {unit: place for place, unit in enumerate(self.units)}

    @property
    def members(self) -> KeysView[str]:
        """The same units, to look one up."""
        return self.places.keys()

    def among(self, names: Collection[str]) -> list[str]:
        """Those of its units that are among these, in its order."""
        if len(names) >= len(self.places):
            return [unit for unit in self.units if unit in names]
        return sorted((name for name in names if name in self.places), key=self.places.__getitem__)


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One rollout and where it stands."""

    plan: RolloutPlan
    author: str
    position: int
    since_led_us: int
    phase: Phase = "proposed"
    phase_position: int = 0
    approvers: list[str] = field(default_factory=list)
    """Who agreed, in order."""
    waves: list[Wave] = field(default_factory=list)
    completed_keys: tuple[str, ...] = ()
    halted_code: str | None = None
    carried: Wave | None = None
    """Units whose grants it took over from the rollout it supersedes: passed there, watched here."""
    carried_keys: frozenset[str] = frozenset()
    """Kernel keys that had baked there: of these it goes on, of any other it begins anew."""
    judged_by: Policy | None = None  # at its start; one since counts only where it is stricter
    covered: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """The units its plan selects by name, to look one up."""
    selected: tuple[frozenset[str], ...] = field(default=(), compare=False, repr=False)
    """The units that each planned wave selects by name."""

    def __post_init__(self) -> None:
        self.covered = frozenset(self.plan.select.units)
        selects = (wave.select for wave in self.plan.waves)
        self.selected = tuple(frozenset(one.units if one else ()) for one in selects)

    @property
    def approver(self) -> str | None:
        """Who agreed last."""
        return self.approvers[-1] if self.approvers else None

    @property
    def agreed(self) -> str:
        """How many have agreed, of how many that must."""
        return f"{len(self.approvers)} of {self.plan.approvals} people have approved it"

    @property
    def open_wave(self) -> Wave | None:
        """The wave that has no verdict yet."""
        return self.waves[-1] if self.waves and self.waves[-1].verdict is None else None

    @property
    def watched(self) -> list[Wave]:
        """Its waves, and before them what it carried over: a bad sign there is its own."""
        return self.waves if self.carried is None else [self.carried, *self.waves]

    @property
    def ended(self) -> bool:
        """True when nothing more will open."""
        return self.phase in ("halted", "aborted", "completed")
