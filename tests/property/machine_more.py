"""More rules of the state machine: a server over three nodes, several people, snapshots, waits."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests import given
from tests.property import histories

from smgate.domain import commands, revocation
from smgate.scenario import invariants

ROLES = ("operator", "approver")
PEOPLE = st.sampled_from([{"by": by, "role": role} for by in ("bob", "carol") for role in ROLES])


class More(RuleBasedStateMachine):
    """What may happen to a fleet beside what its nodes report one by one."""

    @rule(ranks=st.permutations((0, 1, 2)), all_of_them=st.booleans())
    def launch_on_three_nodes(self, ranks, all_of_them):
        for rank in ranks if all_of_them else ranks[:2]:
            node = "qrs"[rank]
            if node not in self.fleet.state.nodes:
                self.fleet.node(node)
            self.fleet.launch(node, nnodes=3, node_rank=rank, unit_name="three")

    @rule(rank=st.integers(0, 2), runner=st.sampled_from([given.TARGET, given.SAFE]))
    def serve_on_three_nodes(self, rank, runner):
        changes = {"nnodes": 3, "node_rank": rank, "unit_name": "three"}
        self.fleet.serves("qrs"[rank], runner, **changes)

    @rule()
    def go_on_from_a_snapshot(self):
        self.fleet.state = histories.from_its_bytes(self.fleet.state)

    @precondition(lambda self: self.timers())
    @rule()
    def time_passes_until_a_wait_ends(self):
        self.fleet.later(min(self.timers()) / 1_000_000)

    def timers(self):
        return [wait.remaining_us for wait in self.fleet.waits if (wait.remaining_us or 0) > 0]

    @rule(node=st.sampled_from("aq"))
    def retire(self, node):
        self.fleet.tries(commands.RetireNode(node=node, reason="r"), role="operator")

    @precondition(lambda self: any(one.open for one in self.fleet.state.changes.values()))
    @rule(who=PEOPLE, kind=st.sampled_from([commands.AcceptChange, commands.WithdrawChange]))
    def answer_a_change(self, who, kind):
        change = next(one.id for one in self.fleet.state.changes.values() if one.open)
        self.fleet.tries(kind(change=change, reason="r"), **who)

    @rule(
        rollout=st.sampled_from(["r1", "r2", "r3"]),
        unit=st.none() | st.sampled_from("abc"),
        wave=st.none() | st.integers(0, 2),
    )
    def take_back_what_a_rollout_granted(self, rollout, unit, wave):
        """It says nothing bad of anybody, and leaves no grant of that rollout to whom it names."""
        signs = list(self.fleet.state.bad_signs)
        revoke = revocation.RevokeGrants(rollout=rollout, unit=unit, wave=wave, reason="r")
        for event in self.fleet.tries(revoke, role="operator") or ():
            for one in map(self.fleet.state.units.get, event.units):
                assert all(grant.rollout != rollout for grant in one.grants)
        assert self.fleet.state.bad_signs == signs

    @invariant()
    def every_wait_has_an_owner_and_a_timer_that_ends_it(self):
        if hasattr(self, "fleet"):
            assert invariants.waits_are_kept(self.fleet.state, self.fleet.now_us) is None
