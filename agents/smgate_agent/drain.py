"""Run the drain hook when the controller orders it: once per order, and never for a stale one.

An order stands in the signed directive of every node of its unit; the node of the first rank acts,
unless the instance says that every rank does. It acts only on what the controller has just
confirmed, only while the ordered server is here, not started again since, and runs something else than its
unit's decision, and only before the deadline by this node's clock. That it began is durable before the hook runs: an agent that was
killed in the middle does not run it again and says that it does not know how it ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from smgate.wire import directive, facts
from smgate_agent import clock, config, files, instance, outbox
from smgate_agent.launch import whole_file

ORDERS_FILE: Final = "drains.json"
ORDERS_MAX: Final = 256
"""Newest orders remembered; a directive has one per unit of the node."""

log = logging.getLogger(__name__)

Outcome = Literal["succeeded", "failed", "timeout", "interrupted", "no_hook"]


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """One order that was begun for one instance."""

    incarnation: str
    order: int
    unit: str
    instance: str
    ended: bool


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """One declared instance, and how it stands."""

    declared: config.Instance
    view: instance.View


class Drains:
    """Takes orders from the thread that polls and carries them out in its own."""

    def __init__(
        self,
        state_dir: Path,
        *,
        watched: Callable[[], Sequence[Watched]],
        outbox_: outbox.Outbox,
        clock_: clock.Clock,
        stop: threading.Event,
    ) -> None:
        self._path = state_dir / ORDERS_FILE
        self._watched = watched
        self._outbox = outbox_
        self._clock = clock_
        self._stop = stop
        self._confirmed: directive.Directive | None = None
        self._due = threading.Event()
        self._remembered: tuple[Remembered, ...] = ()

    def confirm(self, held: directive.Directive) -> None:
        """The controller has just said that this is its directive for this node."""
        self._confirmed = held
        self._due.set()

    def wake(self) -> None:
        """Look whether to stop."""
        self._due.set()

    def run(self) -> None:
        """Carry out orders until told to stop."""
        self.own_up()
        while not self._stop.is_set():
            self._due.wait()
            self._due.clear()
            self.step()

    def own_up(self) -> None:
        """Orders that were begun and not ended: the agent ended meanwhile.

        Raises:
            OSError, msgspec.MsgspecError: nobody knows what was begun; then nothing is run.
        """
        if self._path.exists():
            data = files.read_bounded(self._path)
            self._remembered = msgspec.json.decode(data, type=tuple[Remembered, ...])
        for one in self._remembered:
            if not one.ended:
                self._end(one, "interrupted", None)

    def step(self) -> None:
        """Carry out what was confirmed last. An order is confirmed again with every answer."""
        held, self._confirmed = self._confirmed, None
        if held is None or not isinstance(held.drains, tuple):
            return
        for order in held.drains:
            for one in self._watched():
                if not self._stop.is_set() and self._is_mine(held, order, one):
                    self._carry_out(held.incarnation, order, one)

    def _is_mine(
        self, held: directive.Directive, order: directive.DrainOrder, one: Watched
    ) -> bool:
        declared, view = one.declared, one.view
        told = next((unit for unit in held.units if unit.unit == order.unit), None)
        known = any(
            (past.incarnation, past.order, past.instance)
            == (held.incarnation, order.order, declared.id)
            for past in self._remembered
        )
        return (
            not known
            and self._clock.now_us() < order.deadline_us
            and (declared.node_rank == 0 or declared.drain_hook_on == "every_rank")
            and order.instances.get(declared.id) == view.restarts
            and view.launch_id in (None, *order.launch_ids)
            and view.state not in (None, "exited")
            and told is not None
            and told.form == "append"
            and view.runner not in (None, told.value)
        )

    def _carry_out(self, incarnation: str, order: directive.DrainOrder, one: Watched) -> None:
        begun = Remembered(
            incarnation=incarnation,
            order=order.order,
            unit=order.unit,
            instance=one.declared.id,
            ended=False,
        )
        self._remember(begun)
        hook = one.declared.drain_hook
        if not hook:
            self._end(begun, "no_hook", None)
            return
        log.warning("Order %d: restarting unit %s by its drain hook.", order.order, order.unit)
        left_s = (order.deadline_us - self._clock.now_us()) / 1_000_000
        self._end(begun, *_run(hook, timeout_s=min(one.declared.drain_hook_timeout_s, left_s)))

    def _end(self, begun: Remembered, outcome: Outcome, exit_code: int | None) -> None:
        """Tell, then remember that it was told: told twice does no harm."""
        ending = facts.DrainHookEnded(
            order=begun.order, unit=begun.unit, outcome=outcome, exit_code=exit_code
        )
        self._outbox.report(f"drain:{begun.instance}", ending, salt=begun.incarnation)
        self._remember(msgspec.structs.replace(begun, ended=True))
        level = logging.INFO if outcome == "succeeded" else logging.ERROR
        log.log(level, "Order %d: the drain hook of unit %s: %s.", begun.order, begun.unit, outcome)

    def _remember(self, one: Remembered) -> None:
        """Durably, before anything is done about it.

        Raises:
            OSError: the state directory cannot be written; then nothing is run.
        """
        others = (
            past
            for past in self._remembered
            if (past.incarnation, past.order, past.instance)
            != (one.incarnation, one.order, one.instance)
        )
        remembered = (*others, one)[-ORDERS_MAX:]
        whole_file.replace(self._path, msgspec.json.encode(remembered))
        self._remembered = remembered


def _run(hook: Sequence[str], *, timeout_s: float) -> tuple[Outcome, int | None]:
    """Run to the end or to the limit. What it prints may hold secrets: it goes nowhere."""
    try:
        child = subprocess.Popen(  # noqa: S603  the node's own configuration says what to run
            hook,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return "failed", None
    try:
        code = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return "timeout", None
    return ("succeeded" if code == 0 else "failed"), code
