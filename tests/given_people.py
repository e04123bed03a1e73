"""What people do in the domain's tests: give commands, alone or two together, and are refused."""

from __future__ import annotations

from typing import Any

import pytest

from smgate.domain import commands, decider, errors, events, rulings, state


class People:
    """The part of `given.Fleet` that is about people."""

    state: state.Fleet
    now_us: int

    def record(self, event: events.Event, actor: str) -> events.Recorded:
        """As `given.Fleet`."""
        raise NotImplementedError

    def settle(self) -> None:
        """As `given.Fleet`."""
        raise NotImplementedError

    def orders(
        self, command: commands.Command, *, by: str = "alice", role: str = "approver"
    ) -> tuple[events.Event, ...]:
        """A person gives a command, and zoe accepts what needs another: what it came to."""
        found = self.alone(command, by=by, role=role)
        if not (found and isinstance(found[-1], rulings.ChangeAsked)):
            return found
        accept = commands.AcceptChange(change=self.newest_change(), reason="yes")
        return self.alone(accept, by="zoe")[1:]

    def newest_change(self) -> str:
        """The change that a person made last; the guard may have held one of its own since."""
        return [change.id for change in self.state.changes.values() if change.by is not None][-1]

    def alone(
        self, command: commands.Command, *, by: str = "alice", role: str = "approver", **how: Any
    ) -> tuple[events.Event, ...]:
        """One person gives a command; then the leader plans."""
        found = self._decide(command, by=by, role=role, **how)
        for event in found:
            self.record(event, f"operator:{by}")
        self.settle()
        return found

    def refuses(
        self, command: commands.Command, *, by: str = "alice", role: str = "approver", **how: Any
    ) -> str:
        """The code with which a command is refused."""
        with pytest.raises(errors.RejectedError) as refusal:
            self._decide(command, by=by, role=role, **how)
        assert refusal.value.message
        assert refusal.value.next_step
        return refusal.value.code

    def _decide(
        self, command: commands.Command, *, by: str, role: str, **how: Any
    ) -> tuple[events.Event, ...]:
        who = {"by": by, "roles": frozenset({role})}
        return decider.decide(self.state, command, now_us=self.now_us, **who, **how)
