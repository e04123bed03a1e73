"""Owns a person's command: fold to the head, let the domain decide, append, answer.

Commands are given one at a time over all processes (a short lease), so none is decided on a state
that another command is about to change. A command with an idempotency key is stored in a stream of
that key and its own content: sent again, it finds itself and answers as it did the first time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from smgate.clock import Clock, new_id
from smgate.domain import (
    change_commands,
    changes,
    commands,
    decider,
    errors,
    rulings,
    unit_commands,
)
from smgate.domain.events import Event
from smgate.log import codec, port
from smgate.service import appender, credentials, fold, preview, records, refusal, strict

TRIES_MAX: Final = 5
"""Enrolments share the stream; more lost races than this means it is too hot, so say so."""

TURN: Final = "commands"
TURN_TTL_S: Final = 10.0
"""Longer than any statement may take, so a turn that is over has ended or failed."""
TURN_WAIT_S: Final = 0.05
TURN_TRIES_MAX: Final = 100

QUIET: Final = frozenset({"bake_interval", "weights_seen"})
"""Events that come all the time and change no decision: they do not move the world."""

KEY_MAX: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One command as it was sent."""

    name: str
    command: commands.Command
    expected_position: int | None
    idempotency_key: str | None
    dry_run: bool
    break_glass_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An open change of a person, as it was when a command was answered."""

    change: str
    kind: str
    until: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command came to. `repeated` if it had been given before under its key.

    `waits` is the change that waits for another person now: what was asked, or done alone.
    """

    position: int
    events: tuple[Event, ...]
    changed: bool
    repeated: bool = False
    preview: dict[str, Any] | None = None
    waits: Waiting | None = None


def parse(body: bytes) -> Request:
    """A command from a request's body.

    Raises:
        RefusedError: `bad_json`, `bad_command`, `unknown_command`, `too_long`.
    """
    value = strict.parse(body)
    name = value.pop("type", None)
    kind = commands.NAMES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise refusal.RefusedError(
            422,
            "bad_command",
            f"There is no command {name!r}.",
            next_step=f"One of {', '.join(sorted(commands.NAMES))}.",
        )
    frame: dict[str, Any] = {
        key: value.pop(key)
        for key in ("expected_position", "idempotency_key", "dry_run", "break_glass_s")
        if key in value
    }
    framed = strict.convert(frame, _Frame)
    command: commands.Command = strict.convert(value, kind)
    return Request(
        name=str(name),
        command=command,
        expected_position=framed.expected_position,
        idempotency_key=framed.idempotency_key,
        dry_run=framed.dry_run,
        break_glass_s=framed.break_glass_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    expected_position: int | None = None
    idempotency_key: str | None = None
    dry_run: bool = False
    break_glass_s: int | None = None


class Commands:
    """The way in for people's commands."""

    def __init__(self, log: appender.Appender, *, folder: fold.Folder, clock: Clock) -> None:
        self._log: Final = log
        self._store: Final = log.store
        self._folder: Final = folder
        self._clock: Final = clock
        self._here: Final = threading.Lock()

    def handle(self, request: Request, *, by: credentials.Credential) -> Outcome:
        """Do one command, or say what it would do.

        Raises:
            RefusedError: the domain's refusals, `world_moved`, `busy`.
        """
        stream = records.OPERATORS
        if request.idempotency_key is not None:
            stream = _keyed_stream(request, by)
            repeated = self._repeated(stream)
            if repeated is not None:
                return self._waiting(request, repeated)
        if request.dry_run:
            return self._preview(request, by=by)
        with self._turn():
            for _ in range(TRIES_MAX):
                outcome, made = self._decide(request, by=by, stream=stream)
                if not made:
                    return self._waiting(request, outcome)
                with contextlib.suppress(port.ConflictError):
                    return self._waiting(request, self._append(made, outcome))
                repeated = None if stream == records.OPERATORS else self._repeated(stream)
                if repeated is not None:
                    return self._waiting(request, repeated)
        raise _busy()

    def _decide(
        self,
        request: Request,
        *,
        by: credentials.Credential,
        stream: str = records.OPERATORS,
    ) -> tuple[Outcome, list[port.NewRecord]]:
        with self._folder.at_head() as fleet:
            self._check_position(request.expected_position, fleet.position)
            try:
                events = decider.decide(
                    fleet,
                    request.command,
                    by=by.subject,
                    roles=frozenset({by.role or ""}),
                    now_us=self._clock.now_us(),
                    break_glass_s=request.break_glass_s,
                )
            except errors.RejectedError as error:
                raise refusal.of_domain(error) from error
            first = 1
            if stream == records.OPERATORS:
                first = self._store.stream_version(stream) + 1
            made = [
                records.of_ruling(
                    event,
                    fleet=fleet,
                    stream=stream,
                    version=version,
                    actor=records.operator_actor(by.subject),
                    at_us=self._clock.now_us(),
                )
                for version, event in enumerate(events, start=first)
            ]
            outcome = Outcome(position=fleet.position, events=events, changed=bool(events))
        return outcome, made

    def _preview(self, request: Request, *, by: credentials.Credential) -> Outcome:
        with self._folder.at_head() as fleet:
            outcome, _ = self._decide(request, by=by)
            follows = outcome.events
            if any(isinstance(event, rulings.ChangeAsked) for event in follows):
                # In numbers: what it comes to once another person agrees.
                follows = decider.effect(fleet, request.command, by=by.subject)
            now_us = max(fleet.now_us, self._clock.now_us())
            taken = preview.snapshot(fleet)
        shown = preview.of_events(taken, follows, by=by.subject, now_us=now_us)
        return self._waiting(request, dataclasses.replace(outcome, preview=shown))

    def _waiting(self, request: Request, outcome: Outcome) -> Outcome:
        """The outcome with the change that waits for another person, if this is one."""
        with self._folder.at_head() as fleet:
            try:
                settled = unit_commands.settled(fleet, request.command)
            except errors.RejectedError:  # The unit is gone by now.
                return outcome
            found = change_commands.same(fleet, settled)
            if found is None:
                return outcome
            shown = changes.show(fleet, found, max(fleet.now_us, self._clock.now_us()))
        waiting = Waiting(change=found.id, kind=found.kind, until=shown["until"])
        return dataclasses.replace(outcome, waits=waiting)

    def _append(self, made: list[port.NewRecord], outcome: Outcome) -> Outcome:
        try:
            appended = self._log.append(made)
        except port.SamePersonError as error:
            raise refusal.RefusedError(
                403,
                "same_person",
                "Who asked cannot be the one who agrees.",
                next_step="Ask another person who has the role approver.",
            ) from error
        return Outcome(
            position=max(appended.positions),
            events=outcome.events,
            changed=True,
            repeated=not appended.written,
        )

    def _repeated(self, stream: str) -> Outcome | None:
        try:
            stored = self._store.read_stream(stream)
        except port.BelowFloorError as error:
            # It was given before the log was cut: done, and what it came to is in the archive.
            return Outcome(position=error.floor, events=(), changed=True, repeated=True)
        if not stored:
            return None
        return Outcome(
            position=stored[-1].position,
            events=tuple(codec.recorded(record).event for record in stored),
            changed=True,
            repeated=True,
        )

    def _check_position(self, expected: int | None, position: int) -> None:
        if expected is None or expected == position:
            return
        after = expected
        with contextlib.suppress(port.BelowFloorError):  # Too long ago to look at it all.
            while expected <= position and (page := self._store.read(after=after)):
                if any(record.type not in QUIET for record in page):
                    break
                after = page[-1].position
            else:
                if expected <= position:
                    return
        raise refusal.RefusedError(
            409,
            "world_moved",
            f"The log is at position {position}, not {expected}: something happened since.",
            next_step="Look again, then repeat the command with the new position.",
        )

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Nobody else's command is decided meanwhile, in this process or another."""
        holder = new_id()
        with self._here:
            for _ in range(TURN_TRIES_MAX):
                if self._store.acquire_lease(TURN, holder=holder, ttl_s=TURN_TTL_S) is not None:
                    break
                self._clock.wait(threading.Event(), TURN_WAIT_S)
            else:
                raise _busy()
            try:
                yield
            finally:
                with contextlib.suppress(port.LogUnavailableError):  # It runs out by itself.
                    self._store.release_lease(TURN, holder=holder)


def _keyed_stream(request: Request, by: credentials.Credential) -> str:
    key = request.idempotency_key or ""
    if not 1 <= len(key) <= KEY_MAX:
        raise refusal.RefusedError(
            422,
            "bad_command",
            "An idempotency key has 1 to 120 characters.",
            next_step="Send a random one per command, and the same one when trying again.",
        )
    content: list[Any] = [by.subject, request.name, msgspec.to_builtins(request.command)]
    if request.break_glass_s is not None:
        content.append(request.break_glass_s)
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]
    return f"{records.COMMANDS}{hashlib.sha256(key.encode()).hexdigest()[:32]}/{digest}"


def _busy() -> refusal.RefusedError:
    return refusal.RefusedError(
        503,
        "busy",
        "Other commands were given at the same moment.",
        next_step="Try again.",
        retry_after_s=1,
    )
