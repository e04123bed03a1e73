"""The machine under a tight change guard, with restores in between: it plans the same by both ways."""

from hypothesis import settings, strategies as st
from hypothesis.stateful import precondition, rule
from tests import given
from tests.property import test_machine, watched

from smgate.domain import commands, decisions, facts, fleet_asks


class GuardedFleet(test_machine.Fleet):
    """One changed override per window, and logs that are lost."""

    def __init__(self):
        super().__init__()
        self.fleet = watched.Watched(min_gpu_sets=2, breaker_bad_units=2, change_limit_units=1)

    def open_changes(self):
        return [c.id for c in self.fleet.state.changes.values() if c.open and c.differences]

    @precondition(lambda self: self.open_changes())
    @rule(accepted=st.booleans())
    def answer_a_held_change(self, accepted):
        change = self.open_changes()[0]
        kind = commands.AcceptChange if accepted else commands.WithdrawChange
        self.fleet.tries(kind(change=change, reason="r"), by="bob")

    @rule()
    def restore_the_log(self):
        name = f"log-{self.fleet.state.position}"
        restored = decisions.LogRestored(before="log", incarnation=name, reason="r")
        self.fleet.record(restored, "controller")
        self.fleet.settle()

    @rule(node=test_machine.nodes, value=st.sampled_from([given.TARGET, given.SAFE, None]))
    def say_what_was_held(self, node, value):
        form = "untouched" if value is None else "append"
        held = tuple(
            facts.HeldUnit(unit=name, form=form, value=value, code="held")
            for name, unit in self.fleet.state.units.items()
            if unit.override is not None and node in unit.override.nodes
        )
        restored_as = self.fleet.state.restore.incarnation
        said = facts.DirectiveHeld(
            restored_as=restored_as, incarnation="log", generation=1, units=held
        )
        self.fleet.says(node, said)

    @rule()
    def finish_the_restore(self):
        self.fleet.tries(fleet_asks.FinishRestore(reason="r"))


TestGuardedFleet = GuardedFleet.TestCase
TestGuardedFleet.settings = settings(test_machine.TestFleet.settings, max_examples=30)
