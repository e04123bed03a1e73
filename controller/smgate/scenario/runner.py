"""Runs a scenario through the real core: its times alone move the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from smgate.domain import commands
from smgate.domain.errors import RejectedError
from smgate.domain.policy import Policy
from smgate.domain.waits import SECOND_US
from smgate.domain.why import iso
from smgate.log import codec, port, verify
from smgate.scenario import before, core, document, snapshot, telling
from smgate.scenario.document import Planned, Scenario, ScenarioError
from smgate.service.refusal import RefusedError


class Run:
    """One run of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario: Final = scenario
        self.core: Final = core.Core(
            scenario.start_us,
            name="scenario",
            first_policy=document.of_version_1(Policy()) if scenario.version == 1 else None,
        )
        self.named: Final[dict[str, str]] = {}
        self.snapshots = snapshot.Snapshots()
        self.moments: Final[list[dict[str, Any]]] = []
        self.shown_position = 0

    def run(self) -> dict[str, Any]:
        """Run all steps and return what the controller made of them."""
        self.core.settle()
        index = 0
        if not self.scenario.steps or self.scenario.steps[0].at_us > 0:
            self._show(lines=[], refused=[])
        while index < len(self.scenario.steps):
            at_us = self.scenario.steps[index].at_us
            self.core.run_until(self.scenario.start_us + at_us, self._show_stop)
            refused, lines = [], []
            while index < len(self.scenario.steps) and self.scenario.steps[index].at_us == at_us:
                planned = self.scenario.steps[index]
                lines.append(planned.line)
                refusal = self._do(planned)
                if refusal is not None:
                    refused.append(refusal)
                self.core.settle()
                index += 1
            self._show(lines=lines, refused=refused)
        report = verify.verify(self.core.store)
        return {
            "scenario": self.scenario.version,
            "name": self.scenario.name,
            "times": self.moments,
            "log_events": report.positions,
            "chain_ok": report.ok,
        }

    def _do(self, planned: Planned) -> dict[str, Any] | None:
        match planned.step:
            case document.FactStep(node=node) | document.FactsStep(node=node):
                self.core.report(node, planned.facts)
            case document.CommandStep():
                return self._command(planned, planned.step)
            case document.ConnectStep(connect=node):
                self.core.heard.connect(node)
                self.core.send_again(node)
            case document.DisconnectStep(disconnect=node):
                self.core.heard.disconnect(node)
            case document.ControllerStep(controller="away"):
                self.core.go_away()
            case document.ControllerStep():
                self.core.come_back()
            case document.RulesStep(rules=former):
                return self._rules(planned, former)
            case document.RestoreStep(restore=age):
                self._restore(document.duration_us(age))
            case _:  # a look
                pass
        return None

    def _command(self, planned: Planned, step: document.CommandStep) -> dict[str, Any] | None:
        """One person's command, and where the step says so another's agreement to it."""
        assert planned.command is not None
        command = planned.command
        if isinstance(command, commands.AcceptChange | commands.WithdrawChange):
            command = replace(command, change=self.named.get(command.change, command.change))
        try:
            waits = self.core.command(
                command, by=step.by, role=step.role, break_glass_s=planned.break_glass_s
            )
            if waits is None or not isinstance(step, document.AgreedCommandStep):
                return None
            if step.named is not None:
                self.named[step.named] = waits
            if step.accepted_by is not None:
                accept = commands.AcceptChange(change=waits, reason=command.reason)
                self.core.command(accept, by=step.accepted_by, role="approver")
        except RefusedError as error:
            return _refused(planned, error)
        return None

    def _restore(self, age_us: int) -> None:
        connected = self.core.restore(age_us)
        self.shown_position = self.core.store.head().position - 1
        self.snapshots = snapshot.Snapshots()
        self.core.settle()
        for node in connected:
            self.core.send_again(node)

    def _rules(self, planned: Planned, former: before.RulesBefore) -> dict[str, Any] | None:
        try:
            self.core.led_before(former)
        except RejectedError as error:
            return _refused(planned, error)
        return None

    def _show_stop(self) -> None:
        self._show(lines=[], refused=[])

    def _show(self, *, lines: list[int], refused: list[dict[str, Any]]) -> None:
        now_us = self.core.clock.now_us()
        # While nobody leads no timer runs: waits stand as they were when the leader left.
        led_until_us = now_us if self.core.away_since_us is None else self.core.away_since_us
        with self.core.folder.at_head() as fleet:
            events = [_event(record) for record in self._new_records()]
            self.moments.append(
                {
                    "at_s": (now_us - self.scenario.start_us) / SECOND_US,
                    "time": iso(now_us),
                    "lines": lines,
                    "refused": refused,
                    "events": events,
                    "controller": "leads" if self.core.away_since_us is None else "away",
                    **self.snapshots.take(fleet, led_until_us, held=self.core.held(fleet.position)),
                }
            )

    def _new_records(self) -> list[port.StoredRecord]:
        found: list[port.StoredRecord] = []
        while page := self.core.store.read(after=self.shown_position):
            found.extend(page)
            self.shown_position = page[-1].position
        return found


def _refused(planned: Planned, error: RefusedError | RejectedError) -> dict[str, Any]:
    return {
        "line": planned.line,
        "code": error.code,
        "message": error.message,
        "next_step": error.next_step,
    }


def _event(record: port.StoredRecord) -> dict[str, Any]:
    payload: dict[str, Any] = msgspec.json.decode(record.data)
    return {
        "position": record.position,
        "type": record.type,
        "actor": record.actor,
        "says": telling.says(codec.recorded(record).event),
        "event": payload,
    }


def run_text(text: str) -> dict[str, Any]:
    """Run a scenario given as text.

    Raises:
        ScenarioError: the text is not of the format; names the line.
    """
    return Run(document.parse(text)).run()


def run_file(path: Path) -> dict[str, Any]:
    """Run a scenario file.

    Raises:
        ScenarioError: unreadable, or not of the format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}", line=0) from error
    return run_text(text)
