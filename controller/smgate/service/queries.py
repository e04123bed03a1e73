"""Owns reading: lists and single things from the views, reasons and waits from the fold."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
from collections.abc import Callable
from typing import Any, Final

from smgate.clock import Clock
from smgate.domain import (
    changes,
    decider,
    errors,
    history,
    policy as policies,
    take_back,
    unit_commands,
    waits,
    why,
    why_build,
    why_rollout,
    why_waits,
)
from smgate.domain.events import Event, Recorded
from smgate.domain.state import Fleet
from smgate.domain.state_changes import Change
from smgate.log import archive as archive_files, archived, codec, port, verify as log_verify
from smgate.service import contacts, fold, histories, preview, refusal, whatif
from smgate.views import present, project, shape

EVENTS_MAX: Final = 1_000
CLOCKS_APART_US: Final = 60_000_000
"""A person's clock may be this far ahead; a later moment has no answer yet."""

Row = dict[str, Any]


class Queries:
    """What people ask."""

    def __init__(
        self,
        store: port.Store,
        *,
        folder: fold.Folder,
        views: project.Views,
        heard: contacts.Contacts,
        clock: Clock,
        archive: pathlib.Path | None = None,
    ) -> None:
        """`archive`: the folder of all its files; None is where each was written."""
        self._store: Final = store
        self._archive: Final = archive
        self._past: Final = archived.ArchivedLog(store, folder=archive)
        self._folder: Final = folder
        self._views: Final = views
        self._heard: Final = heard
        self._clock: Final = clock

    def rows(self, view: str) -> Row:
        """A view, caught up, as the API's list."""
        self._project()
        position, listed = self._views.rows(view)
        heard = self._heard.read() if view in ("nodes", "units") else {}
        told = _listing([_overlaid(view, row, heard) for row in listed], position)
        if view == "alarms":  # They are sent on, and kept where nobody can rewrite them.
            head = self._store.head()
            told["head"] = {"position": head.position, "chain": head.chain.hex()}
        return told

    def row(self, view: str, key: str, *, kind: str) -> Row:
        """One row of a view, caught up.

        Raises:
            RefusedError: `unknown_<kind>`.
        """
        self._project()
        if view == "units":
            with self._folder.at_head() as fleet:
                key = self._unit(fleet, key)
        position, found = self._views.row(view, key)
        if found is None:
            raise refusal.not_found(kind, key)
        heard = self._heard.read() if view in ("nodes", "units") else {}
        return {"apiVersion": "v1", "position": position} | _overlaid(view, found, heard)

    def builds(self) -> Row:
        """Kernel keys, and beside them what was announced before any node ran it."""
        listed = self.rows("builds")
        return listed | {"announced": self.rows("announced")["items"]}

    def why_unit(self, unit: str, *, at: str | None) -> Row:
        """Why a unit gets what it gets, now or as it was known at a position or time."""

        def explain(fleet: Fleet, name: str, now_us: int) -> Row:
            told = why.explain(fleet, name, now_us, read=self._recorded)
            return told | {"waits": why_waits.of_unit(fleet, name, now_us)}

        told = self._why(at, unit, kind="unit", known=lambda f: f.units, explain=explain)
        return told if at is None else told | self._arrived_later(told, at)

    def _arrived_later(self, told: Row, at: str) -> Row:
        """What had happened by that moment and the controller did not know."""
        position, by_us = self._moment(at)
        if by_us is None:
            by_us = self._recorded_at_us(position)
        with self._folder.at_head() as fleet:
            scope = history.scope(fleet, told["unit"])
        return histories.arrived_later(self._past, scope, after=position, by_us=by_us)

    def _recorded_at_us(self, position: int) -> int:
        # Of the floor the list of files says it: what is answered from the opening balance needs none.
        for one in self._store.segments():
            if one.last_position == position:
                return one.recorded_at_us
        return self._past.read(after=position - 1, limit=1)[0].recorded_at_us

    def history_unit(self, unit: str, *, since: str | None, limit: int) -> Row:
        """What happened to a unit, in log order, the newest last."""
        position, now_us = (0, None) if since is None else self._moment(since)
        with self._folder.at_head() as fleet:
            scope = history.scope(fleet, self._unit(fleet, unit))
        # A position is where to begin; a time is what has passed.
        after = position - 1 if since is not None and now_us is None else position
        return histories.of_unit(self._past, scope, after=after, limit=min(limit, EVENTS_MAX))

    def why_build(self, key: str, *, at: str | None) -> Row:
        """Why a kernel key stands where it stands."""
        return self._why(
            at, key, kind="build", known=lambda f: f.keys, explain=why_build.explain_key
        )

    def why_rollout(self, rollout: str, *, at: str | None) -> Row:
        """What a rollout waits for."""
        return self._why(
            at,
            rollout,
            kind="rollout",
            known=lambda f: f.rollouts,
            explain=why_rollout.explain_rollout,
        )

    def foreseen(self, look: Callable[[bytes, int], Row]) -> Row:
        """What a look at a copy of the fleet shows: of a plan, or of two. Appends nothing.

        Raises:
            RefusedError: a plan is not valid, or a rollout unknown.
        """
        with self._folder.at_head() as fleet:
            now_us = self._now_us(fleet)
            taken = preview.snapshot(fleet)
        try:
            return {"apiVersion": "v1"} | look(taken, now_us)
        except errors.RejectedError as error:
            raise refusal.of_domain(error) from error

    def whatif(self, policy: policies.Policy, *, since: str) -> Row:
        """What another policy would have decided since a position or time. Appends nothing.

        Raises:
            RefusedError: the policy is not valid, or that is too long ago.
        """
        position, _ = self._moment(since)
        try:
            return whatif.try_policy(self._store, self._past, policy, since=position)
        except errors.RejectedError as error:
            raise refusal.of_domain(error) from error

    def waits(self) -> Row:
        """Every waiting state: what waits, for whom, and what to do."""
        with self._folder.at_head() as fleet:
            now_us = self._now_us(fleet)
            listed = [
                why_rollout.show_wait(fleet, one, now_us) for one in waits.collect(fleet, now_us)
            ]
            return _listing(listed, fleet.position)

    def changes(self) -> Row:
        """The changes that wait for a person; of one that cannot be done any more, why."""
        with self._folder.at_head() as fleet:
            now_us = self._now_us(fleet)
            rows = [_as_it_stands(fleet, one, now_us)[0] for one in fleet.waiting_changes()]
            return _listing(rows, fleet.position)

    def change(self, name: str) -> Row:
        """One change, also one that waits no more; of an open one what an answer would do.

        Raises:
            RefusedError: `unknown_change`.
        """
        with self._folder.at_head() as fleet:
            now_us = self._now_us(fleet)
            try:
                found = changes.find_change(fleet, name)
            except errors.RejectedError as error:
                raise refusal.of_domain(error) from error
            row, follows = _as_it_stands(fleet, found, now_us)
            shown = {"apiVersion": "v1", **row, "position": fleet.position}  # its own is in its id
            taken = preview.snapshot(fleet) if follows else None
        if taken is None:
            return shown
        seen = preview.of_events(taken, follows, by=found.by or "nobody", now_us=now_us)
        return shown | {"preview": seen}

    def events(self, *, after: int, limit: int) -> Row:
        """The log, from a position on."""
        page = self._past.read(after=after, limit=min(limit, EVENTS_MAX))
        listed = [histories.event(record) for record in page]
        return _listing(listed, page[-1].position if page else after)

    def rulings(self, *, by: str | None, kind: str | None, since: str | None, limit: int) -> Row:
        """What people ordered, in log order, the newest last."""
        position, now_us = (0, None) if since is None else self._moment(since)
        after = position - 1 if since is not None and now_us is None else position
        return histories.rulings(
            self._past, by=by, kind=kind, after=after, limit=min(limit, EVENTS_MAX)
        )

    def head(self) -> Row:
        """The end of the log: keep it elsewhere, and the log can be checked against it later."""
        head = self._store.head()
        return {
            "apiVersion": "v1",
            "position": head.position,
            "chain": head.chain.hex(),
            "epoch": head.epoch,
            "holder": head.holder,
            "incarnation": head.incarnation,
            "recorded_at": shape.iso(head.recorded_at_us or None),
        }

    def verify(self) -> Row:
        """Recompute every hash of the log."""
        past = archived.ArchivedLog(self._store, folder=self._archive, highest={})
        report = log_verify.verified(self._store, lambda: archived.walked(self._store, past))
        return {"apiVersion": "v1"} | log_verify.row(report)

    def undelivered(self, fleet: Fleet) -> int:
        """Live units whose nodes do not all hold the standing decision."""
        held = _held(self._heard.read())
        return sum(
            one.live and one.override is not None and not take_back.is_told(one, held)
            for one in fleet.units.values()
        )

    def taken_back(self, fleet: Fleet) -> dict[str, take_back.Stages]:
        """How far taking back has come, by SM."""
        return take_back.stages(fleet, _held(self._heard.read()))

    def drains(self) -> Row:
        """Every unit that is being taken back, and the three numbers of each SM."""
        held = _held(self._heard.read())
        with self._folder.at_head() as fleet:
            now_us = self._now_us(fleet)
            stages = {
                sm: dataclasses.asdict(one)
                for sm, one in sorted(take_back.stages(fleet, held).items())
            }
            return _listing(take_back.rows(fleet, held, now_us), fleet.position) | {"sms": stages}

    def _why(
        self,
        at: str | None,
        name: str,
        *,
        kind: str,
        known: Callable[[Fleet], Any],
        explain: Callable[[Fleet, str, int], Row],
    ) -> Row:
        if at is None:
            with self._folder.at_head() as fleet:
                return self._explained(fleet, name, self._now_us(fleet), kind, known, explain)
        position, now_us = self._moment(at)
        fleet = fold.fleet_at(self._store, position, past=self._past)
        return self._explained(
            fleet, name, fleet.now_us if now_us is None else now_us, kind, known, explain
        )

    def _explained(
        self,
        fleet: Fleet,
        name: str,
        now_us: int,
        kind: str,
        known: Callable[[Fleet], Any],
        explain: Callable[[Fleet, str, int], Row],
    ) -> Row:
        if kind == "unit":
            name = self._unit(fleet, name)
        if name not in known(fleet):
            raise refusal.not_found(kind, name)
        return {"apiVersion": "v1"} | explain(fleet, name, max(now_us, fleet.now_us))

    @staticmethod
    def _unit(fleet: Fleet, text: str) -> str:
        """A unit's id from an unambiguous beginning of it, as commands take it."""
        try:
            return unit_commands.find_unit(fleet, text).id
        except errors.RejectedError as error:
            raise refusal.of_domain(error) from error

    def _moment(self, at: str) -> tuple[int, int | None]:
        """A position, or a time and the last position recorded by then."""
        if at.isascii() and at.isdigit() and len(at) <= len(str(1 << 53)):
            position = int(at)
            if not 0 < position <= self._store.head().position:
                raise refusal.RefusedError(
                    404,
                    "unknown_position",
                    f"The log has no position {position}.",
                    next_step="See `smgate log tail` for the last ones.",
                )
            return position, None
        try:
            moment = datetime.datetime.fromisoformat(at)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=datetime.UTC)
            now_us = round(moment.timestamp() * 1_000_000)
        except (ValueError, OverflowError) as error:
            raise refusal.RefusedError(
                422,
                "bad_moment",
                f"{at[:60]!r} is neither a log position nor an ISO time.",
                next_step="Write 81244, or 2027-03-01T03:12:00Z.",
            ) from error
        if now_us > self._clock.now_us() + CLOCKS_APART_US:
            raise refusal.RefusedError(
                422,
                "bad_moment",
                f"{at[:60]!r} has not come yet.",
                next_step="Leave --at away for now, or give a time that has passed.",
            )
        return self._past.position_at(recorded_at_us=now_us), now_us

    def _recorded(self, position: int) -> Recorded | None:
        try:
            found = self._past.read(after=position - 1, limit=1)
        except (archive_files.ArchiveMissingError, archive_files.ArchiveBadError):
            return None  # What is known without it is answered without it.
        return codec.recorded(found[0]) if found and found[0].position == position else None

    def _project(self) -> None:
        with self._folder.at_head() as fleet:
            self._views.project(fleet)

    def _now_us(self, fleet: Fleet) -> int:
        return max(fleet.now_us, self._clock.now_us())


def _as_it_stands(fleet: Fleet, change: Change, now_us: int) -> tuple[Row, tuple[Event, ...]]:
    """One change, and what an answer to it would do.

    One that was asked and has become impossible waits on, since it may become possible again.
    """
    shown = {**changes.show(fleet, change, now_us), "would_refuse": None}
    try:
        return shown, decider.answer(fleet, change)
    except errors.RejectedError as error:
        refused = {
            "state": "impossible_now",
            "would_refuse": f"{error.message} {error.next_step}",
            "next_step": f"smgate change withdraw {change.id}",
        }
        return shown | refused, ()


def _listing(items: list[Row], position: int) -> Row:
    return {"apiVersion": "v1", "items": items, "position": position}


def _held(heard: dict[str, contacts.Contact]) -> dict[str, int]:
    return {
        name: one.held_generation for name, one in heard.items() if one.held_generation is not None
    }


def _overlaid(view: str, row: Row, heard: dict[str, contacts.Contact]) -> Row:
    if view == "nodes":
        one = heard.get(row["node"])
        return present.with_contact(
            row,
            last_seen_us=None if one is None else one.last_seen_us,
            held_generation=None if one is None else one.held_generation,
        )
    return present.with_held(row, _held(heard)) if view == "units" else row
