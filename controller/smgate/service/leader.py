"""Owns leading: take the lease and an epoch, fold, sense, plan, append fenced; or stand by.

Any number of processes may run this on one log; the epoch in the head row lets only the newest
leader's decisions in. Whatever fails, the fold is dropped, the leader steps down and tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from smgate.clock import Clock
from smgate.domain import decisions, genesis, planner, policy, rules, sensing, shadow
from smgate.domain.events import Event
from smgate.domain.state import Fleet
from smgate.log import codec, port
from smgate.service import contacts, fold, records

LEASE: Final = "leader"
ROUNDS_MAX: Final = 50
"""Stages planned in one turn. More than this at once is a loop in the rules: it is logged."""
APPEND_MAX: Final = 2_000
"""Decisions in one append: bounds how long the head row is held."""
SENSE_S: Final = 1.0
"""How often heartbeats are looked at."""
RENEWALS: Final = 3
"""Renewals of the lease within its length: two may fail."""
BREATH_S_MAX: Final = 0.25
"""Longest pause after a turn: what a bad sign may wait for beside the turn itself."""
BACKOFF_S_MAX: Final = 15.0
BACKOFF_DOUBLINGS_MAX: Final = 6
SECOND_US: Final = 1_000_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Term:
    """One leadership. Its clock is the database's, measured at each renewal, and never goes back."""

    epoch: int
    version: int
    offset_us: int
    renewed_us: int
    sensed_us: int = 0
    now_us: int = 0
    planned_position: int = -1
    next_due_us: int | None = None
    planner: planner.Planner = field(default_factory=planner.Planner)
    """Remembers what it found settled; a new term, and so a new fold, begins with a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How the leader of this process stands, for readiness and metrics."""

    leading: bool
    epoch: int
    failures: int
    rounds_exhausted: int
    planned_position: int
    next_due_us: int | None = None
    """When the plan is due again though nothing happens; None if never."""
    trouble: str | None = None
    """Why the last turn failed; a standby notices too, since it asks for the lease."""


class Hears(Protocol):
    """Where heartbeats come from."""

    def read(self) -> Mapping[str, contacts.Contact]:
        """The last word of every node."""
        ...


class Leader:
    """Leads, or stands by to. `step` is one turn; `run` repeats it until stopped."""

    def __init__(  # noqa: PLR0913  what it works with, and its three rhythms
        self,
        store: port.Store,
        *,
        folder: fold.Folder,
        heard: Hears,
        clock: Clock,
        holder: str,
        lease_ttl_s: float,
        tick_s: float,
        sense_s: float = SENSE_S,
        first_policy: policy.Policy | None = None,
    ) -> None:
        """`first_policy`: what an empty log begins with; None is the shipped one."""
        self._store: Final = store
        self._folder: Final = folder
        self._heard: Final = heard
        self._clock: Final = clock
        self._holder: Final = holder
        self._lease_ttl_s: Final = lease_ttl_s
        self._tick_s: Final = tick_s
        self._sense_s: Final = sense_s
        self._first_policy: Final = first_policy
        self._wake: Final = threading.Event()
        self._stopping: Final = threading.Event()
        self._term: Term | None = None
        self._failures = 0
        self._failures_in_a_row = 0
        self._rounds_exhausted = 0
        self._trouble: str | None = None

    @property
    def status(self) -> Status:
        """How it stands now."""
        term = self._term
        return Status(
            leading=term is not None,
            epoch=0 if term is None else term.epoch,
            failures=self._failures,
            rounds_exhausted=self._rounds_exhausted,
            planned_position=-1 if term is None else term.planned_position,
            next_due_us=None if term is None else term.next_due_us,
            trouble=self._trouble,
        )

    def wake(self) -> None:
        """There is something new to look at."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the turn at hand."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Lead whenever it can be had, until stopped; then hand the lease over."""
        try:
            while not self._stopping.is_set():
                started_us = self._clock.now_us()
                wait_s = self.step()
                spent_s = max(0.0, (self._clock.now_us() - started_us) / SECOND_US)
                # As long as it took, so that a flood of facts leaves half the time to take them in.
                self._clock.wait(self._stopping, min(BREATH_S_MAX, spent_s))
                self._clock.wait(self._wake, wait_s)
                self._wake.clear()
        finally:
            self.hand_over()

    def step(self) -> float:
        """One turn. Never raises; returns how many seconds may pass until the next."""
        try:
            if self._term is None:
                self._term = self._stand()
            if self._term is None:
                self._trouble = None
                return self._lease_ttl_s / RENEWALS
            wait_s = self._turn(self._term)
        except (port.FencedError, port.LeaseLostError) as error:
            log.warning("Another process leads now: %s", error)
            self._step_down()
            return self._lease_ttl_s / RENEWALS
        except Exception as error:
            # The one broad catch: whatever it was, deciding on a doubtful fold would be worse.
            self._failures += 1
            self._failures_in_a_row += 1
            self._step_down()
            if isinstance(error, port.LogUnavailableError):
                log.error("Leading failed; stepping down: %s", error)  # noqa: TRY400  no bug of ours
                self._trouble = f"{error}. {error.next_step}"
            elif isinstance(error, codec.UnknownEventError | port.LogNotReadyError):
                log.error("Leading failed; stepping down: %s", error)  # noqa: TRY400
                self._trouble = f"The log cannot be read: {error}"
                self.hand_over()
            else:
                log.exception("Leading failed; stepping down.")
                self._trouble = "A turn of the leader failed; the controller's log says how."
                self.hand_over()
            doublings = min(self._failures_in_a_row, BACKOFF_DOUBLINGS_MAX)
            return min(BACKOFF_S_MAX, 0.25 * 2.0**doublings)
        self._failures_in_a_row = 0
        self._trouble = None
        return wait_s

    def hand_over(self) -> None:
        """Let the next leader begin at once."""
        self._term = None
        try:
            self._store.release_lease(LEASE, holder=self._holder)
        except port.LogError as error:
            log.warning("The lease could not be released; it runs out by itself: %s", error)

    def _step_down(self) -> None:
        self._term = None
        self._folder.reset()

    def _stand(self) -> Term | None:
        lease = self._store.acquire_lease(LEASE, holder=self._holder, ttl_s=self._lease_ttl_s)
        if lease is None:
            return None
        epoch = self._store.take_epoch(holder=self._holder, lease=LEASE)
        local_us = self._clock.now_us()
        term = Term(
            epoch=epoch,
            version=self._store.stream_version(records.CONTROLLER),
            offset_us=lease.acquired_at_us - local_us,
            renewed_us=local_us,
        )
        away_us = 0
        if lease.previous_expires_at_us is not None:
            away_us = max(0, lease.acquired_at_us - lease.previous_expires_at_us)
        first: list[Event] = [
            decisions.LeadershipTaken(
                epoch=epoch,
                holder=self._holder,
                away_us=away_us,
                rules_version=rules.RULES_VERSION,
            )
        ]
        with self._folder.at_head() as fleet:
            now_us = self._now(term, fleet)
            if not fleet.events_total["PolicyPublished"]:
                first.extend(genesis.events(self._first_policy))
            first.extend(shadow.on_new_rules(fleet, version=rules.RULES_VERSION, now_us=now_us))
        self._append(term, first, now_us)
        log.info("Leading in epoch %d after %.1f s without a leader.", epoch, away_us / SECOND_US)
        return term

    def _turn(self, term: Term) -> float:
        self._renew(term)
        self._sense(term)
        for _ in range(ROUNDS_MAX):
            with self._folder.at_head() as fleet:
                now_us = self._now(term, fleet)
                due = term.next_due_us is not None and now_us >= term.next_due_us
                if fleet.position == term.planned_position and not due:
                    break
                plan = term.planner.plan(fleet, now_us)
                term.next_due_us = plan.next_due_us
                position = fleet.position
            if not plan.events:
                term.planned_position = position
                break
            self._append(term, plan.events, now_us)
        else:
            self._rounds_exhausted += 1
            log.error("Still planning after %d stages; going on next turn.", ROUNDS_MAX)
            return 0.0
        return self._rest_s(term)

    def _rest_s(self, term: Term) -> float:
        if term.next_due_us is None:
            return self._tick_s
        local_us = self._clock.now_us() + term.offset_us
        return max(0.0, min(self._tick_s, (term.next_due_us - local_us) / SECOND_US))

    def _now(self, term: Term, fleet: Fleet) -> int:
        term.now_us = max(term.now_us, fleet.now_us, self._clock.now_us() + term.offset_us)
        return term.now_us

    def _renew(self, term: Term) -> None:
        local_us = self._clock.now_us()
        if 0 <= local_us - term.renewed_us < self._lease_ttl_s / RENEWALS * SECOND_US:
            return
        lease = self._store.renew_lease(LEASE, holder=self._holder, ttl_s=self._lease_ttl_s)
        if lease is None:
            raise port.LeaseLostError(LEASE, self._holder)
        term.offset_us = lease.acquired_at_us - local_us
        term.renewed_us = local_us

    def _sense(self, term: Term) -> None:
        local_us = self._clock.now_us()
        if 0 <= local_us - term.sensed_us < self._sense_s * SECOND_US:
            return
        term.sensed_us = local_us
        last_seen = {name: one.last_seen_us for name, one in self._heard.read().items()}
        with self._folder.at_head() as fleet:
            now_us = self._now(term, fleet)
            events = sensing.sense(fleet, contacts=last_seen, now_us=now_us)
        self._append(term, events, now_us)

    def _append(self, term: Term, events: Sequence[Event], now_us: int) -> None:
        for start in range(0, len(events), APPEND_MAX):
            part = events[start : start + APPEND_MAX]
            made = records.of_events(
                part,
                stream=records.CONTROLLER,
                first_version=term.version + 1,
                actor=records.CONTROLLER,
                at_us=now_us,
            )
            head = self._store.append(made, writer=self._holder, epoch=term.epoch).head
            for event in part:
                if isinstance(event, decisions.EpisodeOpened):
                    log.warning(
                        "Alarm %s on SM %s: %s Log head %d:%s",
                        *(event.cause, event.sm, event.sentence),
                        *(head.position, head.chain.hex()),
                    )
            term.version += len(part)
