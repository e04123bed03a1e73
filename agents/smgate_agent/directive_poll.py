"""Hold the newest directive that the controller signed for this node.

A directive counts if its signature is the pinned key's, it is for this node, and it is not older
than the one held: by generation within one incarnation of the log; an incarnation that was left
is never returned to. The held one is a file, exactly as it was signed, for the launch gate.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib import parse

import msgspec

from smgate.wire import base, directive, facts
from smgate_agent import clock, controller_link, delivery, files, http1, identity
from smgate_agent.launch import contact, whole_file

DIRECTIVE_FILE: Final = "directive.json"
INCARNATIONS_FILE: Final = "incarnations.json"
INCARNATIONS_MAX: Final = 64
"""Restores of a log's whole life; an attacker without the key cannot add to it."""

_ANSWER_SLACK_S: Final = 10.0
_POLL_INTERVAL_S: Final = 10.0
"""Between two asks when the long-poll is off, or answers at once."""
_OK: Final = 200
_NO_CONTENT: Final = 204
_CONFLICT: Final = 409

Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, message, signature) -> does it verify? Any input, never raises."""


class RefusedError(ValueError):
    """The directive does not count; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Holder:
    """Keeps the directive in force and the rule for replacing it."""

    def __init__(
        self,
        state_dir: Path,
        *,
        credential: identity.Credential,
        verify: Verify,
    ) -> None:
        self._path = state_dir / DIRECTIVE_FILE
        self._left_path = state_dir / INCARNATIONS_FILE
        self._credential = credential
        self._verify = verify
        self._left = self._read_left()
        self.held = self._read_held()

    def heard(self) -> None:
        """The controller answered now: leases are counted from here. Tried, never needed."""
        with contextlib.suppress(OSError):
            whole_file.replace(
                self._path.with_name(contact.CONTACT_FILE),
                msgspec.json.encode(contact.now()),
                mode=whole_file.PUBLIC,
            )

    @property
    def incarnation(self) -> str:
        """Incarnation of the log that is followed now."""
        return self.held.incarnation if self.held is not None else self._credential.incarnation

    def take(self, body: bytes) -> facts.DirectiveHeld | None:
        """Take a directive; if it is of another log, what the one that is left had told.

        Raises:
            RefusedError: it does not count.
        """
        signed, new = self._open(body)
        self._catch_up()
        before = self.incarnation
        if new.incarnation in self._left:
            raise RefusedError("incarnation_left")
        if self.held is not None and new.incarnation == before:
            if new.generation < self.held.generation:
                raise RefusedError("generation_old")
            if new == self.held:
                return None
        left = None
        if new.incarnation != before:
            left = self.said(restored_as=new.incarnation)
            self._left = (*self._left, before)[-INCARNATIONS_MAX:]
            whole_file.replace(self._left_path, msgspec.json.encode(self._left))
        whole_file.replace(self._path, base.encode(signed), mode=whole_file.PUBLIC)
        self.held = new
        return left

    def said(self, *, restored_as: str) -> facts.DirectiveHeld:
        """What the log that is followed told this node, for one that was restored."""
        units = () if self.held is None else self.held.units
        return facts.DirectiveHeld(
            restored_as=restored_as,
            incarnation=self.incarnation,
            generation=0 if self.held is None else self.held.generation,
            units=tuple(
                facts.HeldUnit(unit=one.unit, form=one.form, value=one.value, code=one.code)
                for one in units
            ),
        )

    def _catch_up(self) -> None:
        """A launch gate on this node writes the same file: it may hold a newer one."""
        written = self._read_held()
        if written is None or written.incarnation != self.incarnation:
            return
        if self.held is None or written.generation > self.held.generation:
            self.held = written

    def _open(self, body: bytes) -> tuple[directive.SignedDirective, directive.Directive]:
        try:
            signed = base.decode(body, directive.SignedDirective)
        except base.MalformedError as exc:
            raise RefusedError("directive_malformed") from exc
        message = signed.signed.encode()
        key = bytes.fromhex(self._credential.public_key)
        if not self._verify(key, message, bytes.fromhex(signed.signature)):
            raise RefusedError("signature_wrong")
        try:
            new = base.decode(message, directive.Directive)
        except base.MalformedError as exc:
            raise RefusedError("directive_malformed") from exc
        if new.node != self._credential.node:
            raise RefusedError("directive_of_another_node")
        return signed, new

    def _read_held(self) -> directive.Directive | None:
        try:
            return self._open(files.read_bounded(self._path))[1]
        except (OSError, RefusedError):
            return None

    def _read_left(self) -> tuple[str, ...]:
        try:
            return msgspec.json.decode(files.read_bounded(self._left_path), type=tuple[str, ...])
        except (OSError, msgspec.MsgspecError, ValueError):
            return ()


class Poller:
    """One thread's work: hold the long-poll, which is also the heartbeat."""

    def __init__(  # noqa: PLR0913  what it works with, and whom it tells
        self,
        *,
        link: controller_link.Link,
        holder: Holder,
        clock_: clock.Clock,
        wait_s: int,
        jitter: Callable[[], float],
        stop: threading.Event,
        on_another_log: Callable[[facts.DirectiveHeld], object],
        on_confirmed: Callable[[directive.Directive], object],
        on_baking: Callable[[str | None], object],
    ) -> None:
        self._link = link
        self._holder = holder
        self._clock = clock_
        self._wait_s = wait_s
        self._jitter = jitter
        self._stop = stop
        self._on_another_log = on_another_log
        self._on_confirmed = on_confirmed
        self._on_baking = on_baking

    def run(self) -> None:
        """Ask until told to stop."""
        failures = 0
        while not self._stop.is_set():
            started_s = self._clock.monotonic_s()
            failed = self.step()
            failures = failures + 1 if failed else 0
            if failed:
                self._stop.wait(delivery.backoff_s(failures, self._jitter()))
            elif self._clock.monotonic_s() - started_s < min(1.0, self._wait_s / 2):
                # Answered at once: a directive came, or the other side does not wait.
                pause_s = _POLL_INTERVAL_S if self._wait_s == 0 else 1.0
                self._stop.wait(pause_s * (0.5 + self._jitter()))

    def step(self) -> bool:
        """Ask once; True if it failed."""
        held = self._holder.held
        generation = 0 if held is None else held.generation
        try:
            answer = self._link.request(
                "GET",
                f"/v1/agent/directive?generation={generation}"
                f"&incarnation={parse.quote(self._holder.incarnation, safe='')}&wait={self._wait_s}",
                timeout_s=self._wait_s + _ANSWER_SLACK_S,
            )
        except http1.HttpError as exc:
            return self._failed(f"controller_{exc.code}", reachable=False)
        if answer.status == _NO_CONTENT:
            return self._reached(answer)
        if answer.status != _OK:
            # Told to a restored log or not, nothing that is held was confirmed.
            code = "log_restored" if self._said_held(answer) else None
            code = code or controller_link.problem_code(answer.body) or f"http_{answer.status}"
            return self._failed(code, reachable=True)
        try:
            left = self._holder.take(answer.body)
        except RefusedError as exc:
            return self._failed(exc.code, reachable=True)
        except OSError:
            return self._failed("state_dir_unwritable", reachable=True)
        if left is not None:
            self._on_another_log(left)
        return self._reached(answer)

    def _said_held(self, answer: http1.Answer) -> bool:
        """Tell a restored log what the one before told; False if that was not the question."""
        if answer.status != _CONFLICT:
            return False
        try:
            asked = base.decode(answer.body, directive.LogRestored)
        except base.MalformedError:
            return False
        self._on_another_log(self._holder.said(restored_as=asked.restored_as))
        return True

    def _reached(self, answer: http1.Answer) -> bool:
        self._link.reached()
        self._holder.heard()
        self._on_baking(answer.headers.get(directive.BAKING_HEADER.lower()))
        if self._holder.held is not None:
            self._on_confirmed(self._holder.held)
        return False

    def _failed(self, code: str, *, reachable: bool) -> bool:
        self._link.failed(code, reachable=reachable)
        return True
