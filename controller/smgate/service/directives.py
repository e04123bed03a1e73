"""Owns what is told to nodes: the signed directive, and the answer to a launch gate.

A unit is told only what an `override_set` in the log says.
"""

from __future__ import annotations

from typing import Final

import msgspec

from smgate.clock import Clock
from smgate.domain import decisions, exposure, readings, restoring
from smgate.domain.state import Fleet, Rank, UnitLaunch
from smgate.service import fold, refusal, signing
from smgate.wire import base, directive


class Directives:
    """Builds and signs."""

    def __init__(self, folder: fold.Folder, *, signer: signing.Signer, clock: Clock) -> None:
        self._folder: Final = folder
        self._signer: Final = signer
        self._clock: Final = clock
        self.ahead: Final[set[str]] = set()
        """Nodes that hold more of this log than it has: it lost its end."""

    @property
    def public_key(self) -> str:
        """The key that nodes pin."""
        return self._signer.public_key

    def generation(self, node: str) -> int:
        """Generation of the node's directive, as last folded. Takes no lock, never blocks."""
        return self._folder.book.generation(node)

    def newer_than(self, node: str, generation: int) -> bool:
        """True if the node should be answered now: it holds another generation than the log's."""
        current = self.generation(node)
        if current >= generation:
            return current > generation
        # It holds more than this process knows: look whether the log went on, or was restored.
        self._folder.catch_up()
        if self.generation(node) < generation:
            self.ahead.add(node)
        return self.generation(node) != generation

    def may_be_told(self, node: str, incarnation: str) -> bool:
        """True unless the node follows a log that this one was restored from and must be heard first.

        It says what it was told there, and that is decided on.
        """
        with self._folder.at_head() as fleet:
            return incarnation == self._folder.incarnation or restoring.may_be_told(fleet, node)

    def build(self, node: str) -> directive.SignedDirective:
        """The node's directive, signed."""
        with self._folder.now():
            return self._build(node)

    def baking(self, node: str) -> tuple[str, ...]:
        """The node's instances of which a `bake_interval` counts, as last folded."""
        with self._folder.now() as fleet:
            units = [fleet.units[name] for name in self._folder.book.units(node)]
            return tuple(
                sorted(
                    one.id
                    for unit in units
                    if exposure.bakes(fleet, unit)
                    for one in unit.live_instances()
                    if one.node == node and readings.on_target(fleet, one)
                )
            )

    def launch(self, *, node: str, launch_id: str) -> directive.LaunchAnswer:
        """What is known about one launch.

        Raises:
            RefusedError: `unknown_launch`, `launch_replaced`, `not_your_launch`.
        """
        with self._folder.at_head() as fleet:
            if launch_id not in fleet.launch_units:
                raise refusal.not_found("launch", launch_id)
            rank = _rank(fleet, launch_id)
            if rank is None:
                raise refusal.RefusedError(
                    409,
                    "launch_replaced",
                    "A newer launch of this unit was reported meanwhile.",
                    next_step="Report this launch under a new id if it is the newer one.",
                )
            if rank.node != node:
                raise refusal.RefusedError(
                    403,
                    "not_your_launch",
                    "This launch is of another node.",
                    next_step="Ask with the credential of the node it runs on.",
                )
            unit = fleet.units[fleet.launch_units[launch_id]]
            launch = unit.launch
            decided = launch is not None and covers(launch.decided, launch_id)
            wanted = sorted(
                check
                for (_, wanted_launch), asked in fleet.wanted.items()
                if wanted_launch == launch_id and asked.open
                for check in set(asked.checks) - asked.finished
            )
            return directive.LaunchAnswer(
                unit=unit.id,
                kernel_key=readings.rank_key(fleet, rank),
                directive=self._build(node, launch) if decided else None,
                checks_wanted=tuple(wanted),
            )

    def launch_settled(self, launch_id: str) -> bool:
        """True if there is something to say about a launch: a decision, or a check to run."""
        with self._folder.now() as fleet:
            unit = fleet.units.get(fleet.launch_units.get(launch_id, ""))
            launch = None if unit is None else unit.launch
            if launch is None or covers(launch.decided, launch_id):
                return True
            return any(
                asked.open for (_, wanted), asked in fleet.wanted.items() if wanted == launch_id
            )

    def _build(self, node: str, launch: UnitLaunch | None = None) -> directive.SignedDirective:
        """The node's page; for a launch, what was decided for it as well.

        A standing decision may change after the launch was decided and before every rank has asked;
        all its ranks get the launch's. The standing one stands first: a gate holds that one on to.
        """
        book = self._folder.book
        entries = [
            _override(event, position) for _, (event, position) in sorted(book.units(node).items())
        ]
        if launch is not None and launch.decided is not None:
            of_launch = _override(launch.decided, launch.decided_position)
            if of_launch not in entries:
                entries.append(of_launch)
        message = directive.Directive(
            incarnation=self._folder.incarnation,
            generation=book.generation(node),
            node=node,
            issued_at_us=self._clock.now_us(),
            units=tuple(entries),
            modes=dict(book.modes),
            drains=tuple(
                _drain(event, position, node)
                for _, (event, position) in sorted(book.drains(node).items())
            )
            or msgspec.UNSET,
        )
        signed = base.encode(message)
        return directive.SignedDirective(
            signed=signed.decode(), signature=self._signer.sign(signed)
        )


def covers(decided: decisions.OverrideSet | None, launch_id: str) -> bool:
    """True if a decision was made for this launch."""
    return decided is not None and launch_id in decided.launch_ids


def _rank(fleet: Fleet, launch_id: str) -> Rank | None:
    unit = fleet.units.get(fleet.launch_units.get(launch_id, ""))
    if unit is None or unit.launch is None:
        return None
    for rank in unit.launch.ranks.values():
        if rank.planned.launch_id == launch_id:
            return rank
    return None


def _drain(event: decisions.DrainOrdered, position: int, node: str) -> directive.DrainOrder:
    return directive.DrainOrder(
        order=position,
        unit=event.unit,
        launch_ids=event.launch_ids,
        instances=event.instances.get(node, {}),
        deadline_us=event.deadline_us,
    )


def _override(event: decisions.OverrideSet, position: int) -> directive.UnitOverride:
    return directive.UnitOverride(
        unit=event.unit,
        form=event.form,
        value=event.value,
        code=event.code,
        sentence=event.sentence,
        launch_ids=event.launch_ids,
        given_for=msgspec.convert(event.given_for, directive.GivenFor, from_attributes=True),
        decided_at=position,
        lease_s=msgspec.UNSET if event.lease_s is None else event.lease_s,
    )
