"""One decision for all ranks of a server, also where some or all of them cannot reach the controller.

Rank 0 listens from the moment it has read its launch. What it is told by the controller it hands on;
without that it waits for the others and settles with them what the last directives say. A rank
that hears nothing goes by the local rule, which never takes the target for one rank of several.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from smgate_agent.launch import kernel_key, local_rule, ranks, ranks_rule, state

Json = dict[str, Any]

WAIT_S = 60.0
"""As long as the controller waits for a unit's ranks."""
RESERVE_S = 1.0
NOT_OURS = ("not_cuda", "not_applicable")
"""Nobody steers such a launch, on no rank: nothing is to be agreed, and nobody waits."""


@dataclass(frozen=True)
class Agreement:
    """This rank's part in it. `meeting` is rank 0's; None where it could not listen."""

    launch: Json
    identity: state.Identity
    unit: str
    meeting: ranks.Meeting | None

    def hand_on(self, outcome: Json, signed: Json, report: Json) -> None:
        """The controller has decided: let those know who cannot hear it."""
        proof = {"signed": signed, "launch_id": self.launch["launch_id"]}
        if self.meeting is not None:
            self.meeting.tell(outcome, proof)
        elif self.launch["node_rank"] != 0:
            told = {**report, "proof": proof}
            ranks.ask(self.launch["rendezvous"], told, until=time.monotonic() + ranks.ANSWER_S)

    def settle(self, report: Json, alone: Json, *, until: float) -> tuple[Json, str]:
        """What to do without a word of the controller, and whether a directive or the rule says so."""
        until = min(until - RESERVE_S, time.monotonic() + WAIT_S)
        if self.launch["node_rank"] != 0:
            told = ranks.ask(self.launch["rendezvous"], report, until=until)
            return self._follow(told, report, alone)
        if self.meeting is None:
            return alone, "local_rule"
        for proof in self.meeting.wait(until=until):
            outcome = self._proven(proof)
            if outcome is not None:
                self.meeting.tell(outcome, proof)
                return outcome, "directive"
        agreed = self.meeting.agree(report)
        return (agreed if ranks_rule.may_follow(agreed, report) else alone), "local_rule"

    def _follow(self, told: Json | None, report: Json, alone: Json) -> tuple[Json, str]:
        if told is None:
            return alone, "local_rule"
        proven = self._proven(told.get("proof"))
        if proven is not None:
            return proven, "directive"
        agreed = told["agreed"]
        return (agreed if ranks_rule.may_follow(agreed, report) else alone), "local_rule"

    def _proven(self, proof: object) -> Json | None:
        if not isinstance(proof, dict):
            return None
        launch_id = proof.get("launch_id")
        entry = state.decision_of(proof.get("signed"), self.identity, self.unit, launch_id)
        return None if entry is None else local_rule.apply(entry, self.launch, None)


def begin(launch: Json, identity: state.Identity | None) -> Agreement | None:
    """Take part, where this is a rank of several that knows where the others are."""
    if identity is None or launch["nnodes"] <= 1 or not launch["rendezvous"]:
        return None
    if local_rule.hard_rule(launch) in NOT_OURS:
        return None
    unit = kernel_key.unit_id(identity.node, launch)
    meeting = None
    if launch["node_rank"] == 0:
        meeting = ranks.open_meeting(launch["rendezvous"], unit, launch["nnodes"])
    return Agreement(launch=launch, identity=identity, unit=unit, meeting=meeting)
